// The chart's data as a table.

const MOST_ROWS = 200;

function cell(value, lang) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map((item) => cell(item, lang)).join(", ");
  if (typeof value === "number") {
    return Number.isInteger(value)
      ? value.toLocaleString(lang)
      : value.toLocaleString(lang, { maximumSignificantDigits: 4 });
  }
  return String(value);
}

export function fill(place, payload, lang, truncated) {
  const rows = payload.spec.datasets[payload.dataset];
  const columns = Object.entries(payload.columns);
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const [, label] of columns) {
    const th = document.createElement("th");
    th.scope = "col";
    th.textContent = label;
    head.append(th);
  }
  const body = table.createTBody();
  for (const row of rows.slice(0, MOST_ROWS)) {
    const tr = body.insertRow();
    for (const [field] of columns) {
      const td = tr.insertCell();
      td.textContent = cell(row[field], lang);
      if (typeof row[field] === "number") td.className = "number";
    }
  }
  place.replaceChildren(table);
  if (rows.length > MOST_ROWS) {
    const note = document.createElement("p");
    note.textContent = truncated.replace("{n}", MOST_ROWS).replace("{count}", rows.length);
    place.append(note);
  }
}
