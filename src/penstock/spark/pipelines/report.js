
// The end of the report's script: draw each chart where the page has a place for it.
for (const place of document.querySelectorAll("[data-chart]")) {
  const { kind, title, say, rows, ...options } = JSON.parse(place.dataset.chart);
  place.append(kind === "bars" ? bars(title, rows, options) : curve(title, { ...options, say: say === "duration" ? duration : number, utc: true }).node);
}
