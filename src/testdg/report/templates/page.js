"use strict";
(() => {
  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };

  // Numbers before texts, empty cells always last.
  const compare = (a, b, sign) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };

  const sort = (table, header) => {
    const column = header.cellIndex;
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => compare(key(a, column), key(b, column), down ? -1 : 1));
    body.append(...rows);
  };

  for (const table of document.querySelectorAll("table")) {
    for (const button of table.querySelectorAll("thead button")) {
      button.addEventListener("click", () => sort(table, button.closest("th")));
    }
  }

  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const stored = { // a page opened from a file may not be allowed to remember
    get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("theme", value); } catch { /* forgotten */ } },
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    toggle.textContent = isDark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", isDark() ? "Show the page light" : "Show the page dark");
  };
  const choice = stored.get();
  if (choice === "dark" || choice === "light") root.dataset.theme = choice;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored.set(root.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  show();
})();
