"""What single studies need beyond a table of runs: simulations, derived rows, figures. Named in studies/*.yaml."""
