"""The wire's protocols, as far as doors and engines share them."""
