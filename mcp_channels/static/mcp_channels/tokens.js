// The page that shows new tokens: a button to copy each, and a reload that doesn't make them once more.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    // The page is the answer to a form: reloaded, the browser would send the form again.
    history.replaceState(null, "", document.querySelector(".mcp-issued").dataset.page);

    for (const button of document.querySelectorAll(".mcp-copy")) {
        const input = document.getElementById(button.dataset.for);
        input.addEventListener("focus", () => input.select());
        button.hidden = false;
        button.addEventListener("click", async () => {
            input.select();
            try {
                await navigator.clipboard.writeText(input.value);
            } catch {
                // Without TLS there is no clipboard; the token is selected.
                return;
            }
            button.textContent = button.dataset.done;
        });
    }
});
