// Browsers break lines at hyphens, which cuts options in code (`--` / `set`): keep each short word of it whole.
const LONGEST = 36;
for (const code of document.querySelectorAll(".md-content :not(pre) > code")) {
  if (code.childElementCount || !code.textContent.includes("-")) continue;
  const words = code.textContent.split(/(\s+)/).map((word) => {
    if (!word.includes("-") || word.length > LONGEST) return document.createTextNode(word);
    const whole = document.createElement("span");
    whole.className = "whole";
    whole.textContent = word;
    return whole;
  });
  code.replaceChildren(...words);
}
