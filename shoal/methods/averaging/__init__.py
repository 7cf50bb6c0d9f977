"""How the server makes one state of the clients' messages: means, robust rules, server optimisers, private noise."""
