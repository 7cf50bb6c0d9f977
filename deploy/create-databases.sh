#!/bin/sh
# Two databases in a new PostgreSQL, each with a user of its own: mlflow and prefect. The image of PostgreSQL runs this
# once; by hand, as its administrator:
#
#     MLFLOW_DATABASE_PASSWORD=... PREFECT_DATABASE_PASSWORD=... sh deploy/create-databases.sh
set -eu
: "${MLFLOW_DATABASE_PASSWORD:?the password of the database user mlflow}"
: "${PREFECT_DATABASE_PASSWORD:?the password of the database user prefect}"

# psql reads the passwords from the environment: on its command line everybody on this machine could.
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'END'
\getenv mlflow_password MLFLOW_DATABASE_PASSWORD
\getenv prefect_password PREFECT_DATABASE_PASSWORD
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE prefect OWNER prefect;
REVOKE CONNECT ON DATABASE mlflow, prefect FROM PUBLIC;
END
