"""Workers on other machines: Dask, and the transfer of files to them."""
