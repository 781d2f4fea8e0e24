"""In which precision a model runs, what it could run in, and what changing it takes."""
