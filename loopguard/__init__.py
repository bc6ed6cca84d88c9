"""A reverse proxy that cuts looping model replies mid-stream and asks again."""
