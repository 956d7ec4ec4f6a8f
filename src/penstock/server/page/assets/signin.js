// Signing in with a token, which the server turns into a session: the page does not keep it.

import { session, signIn } from "./api.js";
import { go } from "./app.js";
import { el } from "./dom.js";
import { act, button, empty, field, head, words } from "./ui.js";

export function show(root, { query, signal }) {
  head(root, { title: "Sign in" });
  if (!session.tokens) {
    root.append(empty("This server asks for no token.", el("a", { href: "/dashboard" }, "All queues")));
    return;
  }
  const token = el("input", { type: "password", name: "token", autocomplete: "current-password", spellcheck: "false", required: true, autofocus: true });
  const wrong = el("p", { class: "wrong", role: "alert" });
  const submit = button("Sign in", null, { type: "submit", kind: "primary" });
  const form = el("form", { class: "card signin", on: { submit: enter } },
    el("p", {}, "This server is for holders of a token. What yours may not do is not shown."),
    field("Token", token, "It opens a session, which ends after half an hour without use. The page does not keep it."), wrong, submit);
  root.append(form);
  token.focus();

  function enter(event) {
    event.preventDefault();
    wrong.textContent = "";
    act(submit, async () => {
      try {
        await signIn(token.value);
      } catch (error) {
        wrong.textContent = words(error);
        token.select();
        return;
      }
      if (!signal.aborted) await go(back(query.get("to")), { replaced: true });
    });
  }
}

/** Where to go on: a place of this page, and no other address that a link may have brought here. */
function back(to) {
  try {
    const { origin, pathname, search } = new URL(to ?? "", location.href);
    if (origin === location.origin && /^\/(dashboard(\/.*)?)?$/.test(pathname) && pathname !== "/dashboard/sign-in") return pathname + search;
  } catch {
    // Not an address.
  }
  return "/dashboard";
}
