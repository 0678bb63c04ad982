// What the theme adds to a page when it is read: buttons at code get a name each, and tables that scroll the keyboard's focus.
const mend = () => {
  document.querySelectorAll(".md-code__nav").forEach((tools, n) => tools.setAttribute("aria-label", `Code block ${n + 1}`));
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((box) => box.setAttribute("tabindex", "0"));
};
new MutationObserver(mend).observe(document, { childList: true, subtree: true });
