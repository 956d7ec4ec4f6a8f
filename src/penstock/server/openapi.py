"""stub"""
def document() -> dict: return {}
def page() -> str: return ""
