"""Workers on other machines: Dask, and files that reach them."""
