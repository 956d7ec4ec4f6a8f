// Before the first paint, so that a chosen theme never flashes.
try {
  const chosen = localStorage.getItem("penstock-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // No storage in this browser: the system's theme it is.
}
