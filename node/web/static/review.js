// The films to review: a list that is used by keys.

import { onKeys } from "./keys.js";
import { move, openOnClick } from "./lines.js";

onKeys({ j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1) });
openOnClick();
