"""Both ends of the frontend-engine link, side by side: codec, engine end, frontend end."""
