/* Light or dark, set before anything is painted: a classic script, so that it runs while the page is
 * read. The choice is kept for all tabs; without one the system's preference holds. */
"use strict";
(() => {
  const KEY = "divine.theme";
  const root = document.documentElement;
  const read = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage is forbidden: the system's preference holds
    }
  };
  const apply = (choice) => {
    if (choice === "light" || choice === "dark") root.dataset.theme = choice;
    else delete root.dataset.theme;
  };
  apply(read());
  window.addEventListener("storage", (event) => {
    if (event.key === KEY) apply(event.newValue);
  });

  /** Turn to the other of light and dark; returns the one now shown. */
  window.turnTheme = () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const next = dark ? "light" : "dark";
    apply(next);
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // shown all the same, only not remembered
    }
    return next;
  };
})();
