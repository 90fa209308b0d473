"""One intervention after the other, each in its own row of a batch that grows from block to block."""

import torch

from .budget import compares_in_batch, rounding_unit
from .distributions import output_change
from .residual_stream import hidden_states, inputs, silence, skip_rest, start_at
from .updates import Updates, relative_change


class Row:
    """A changed run of a prompt: blocks joins..L − 1 read what `edit` makes of the clean h [T, d] that enters `joins`.

    joins: 0..L, where L is after the last block; read: the positions whose outputs are compared, a range or tuple;
    edit(h, before): changes h, a copy, in place, `before` being what enters block joins − 1 (None if that is none);
    silent: {block: positions at which the `part` of the call adds nothing}; passed_by: blocks that it does without;
    leaves: the block before which it ends (None: it goes on to the model's output).
    """

    def __init__(self, joins, read, edit=None, silent=None, passed_by=(), leaves=None):
        self.joins, self.read, self.edit, self.silent = joins, read, edit, silent or {}
        self.passed_by, self.leaves = passed_by, leaves


def growing_batch(clean, rows, part=None, damage=False, updates=False, n_tokens=None, tick=None):
    """Run each of `rows` to the end, and compare it with the clean run. The obvious loop:

        for row in rows:
            x = h[row.joins].clone();  row.edit(x, h[row.joins − 1]);  final = blocks row.joins..L−1 of x

    Rows share passes: each joins the batch before its block, and what lies before is not computed for it. A pass holds
    as many rows as the budget's tokens allow, in the order in which they are given.

    clean: the prompt's `CleanRun`; part: "attention" or "mlp", what is silent; damage: whether outputs are compared in
    all of `damage`, or in ‖y − ȳ‖₂ alone; updates: whether to compare what blocks add, too; n_tokens: of how many
    tokens (default: all); tick(share): told what is done.

    Returns for each row the change of the outputs [4 or 1, len(read)], or the residuals [T, d] with which it leaves, in
    a list; and the largest relative change of what each block adds at the positions from read[0] on, [len(rows), L] (0
    before the row joins, or if not asked for).
    """
    llm, arch, n_tokens = clean.llm, clean.arch, n_tokens or len(clean.ids)
    n_layers, size = arch.n_layers, clean.rows(n_tokens)
    changes, relative = [None] * len(rows), torch.zeros(len(rows), n_layers, dtype=torch.float32)
    for start in range(0, len(rows), size):
        numbers = sorted(range(len(rows))[start : start + size], key=lambda k: rows[k].joins)
        some = [rows[k] for k in numbers]
        end, n_rows = max(row.leaves or n_layers for row in some), clean.has_clean_row + len(some)
        encoding = inputs(llm, arch, clean.ids[:n_tokens], 1 if arch.can_add_rows else n_rows)
        with torch.no_grad():
            with llm.trace(encoding, use_cache=False) as tracer:
                left, unmodified, of_blocks = _one_pass(tracer, clean, some, part, updates, n_tokens, end)
                found = _compared(clean, some, left, unmodified, damage)
                relative[numbers] = of_blocks.cpu()
                # where no block runs gpt2 reshapes what leaves its final norm to the tokens of its input
                every = clean.h[-1][:n_tokens].expand(n_rows, -1, -1)
                skip_rest(llm, arch, end if some[0].joins < n_layers else 0, every)
        for k, change in zip(numbers, found, strict=True):
            changes[k] = change
        if tick:
            tick(len(some) / len(rows))
    return changes, relative


def _one_pass(tracer, clean, rows, part, updates, n_tokens, end):
    """Inside a trace, of rows in the order in which they join: their final residuals, a list of [len(read), d], or with
    which they leave [T, d]; those of the unmodified row [T, d]; and the changes of what blocks add [len(rows), L]. No
    block runs from `end` on."""
    llm, arch, n_clean = clean.llm, clean.arch, int(clean.has_clean_row)
    h, n_layers, begin = [x[:n_tokens] for x in clean.h], arch.n_layers, rows[0].joins
    relative = torch.zeros(len(rows), n_layers, dtype=torch.float32, device=h[-1].device)
    first = min(row.read[0] for row in rows)
    early = torch.arange(first, n_tokens) < torch.tensor([[row.read[0]] for row in rows])
    early = early.to(h[-1].device)  # positions from first on that a row does not read
    added = Updates(tracer, llm, arch, range(begin, n_layers)) if updates else None
    # where batches cannot grow, unmodified rows stand in for those that are yet to join
    batch = h[begin].repeat(n_clean if arch.can_add_rows else n_clean + len(rows), 1, 1)
    n_joined, output, before, left = 0, None, h[begin - 1] if begin else None, [None] * len(rows)
    for l in range(begin, end + 1):
        joining = [row for row in rows if row.joins == l]
        if joining:
            new = (batch[0] if n_clean else h[l]).repeat(len(joining), 1, 1)
            for row, x in zip(joining, new, strict=True):
                if row.edit:
                    row.edit(x, before)
            n_rows = n_clean + n_joined
            batch = torch.cat([batch[:n_rows], new.to(batch.device), batch[n_rows + len(joining) :]])
            n_joined += len(joining)
        before = batch[0].clone() if n_clean else h[l]  # a copy, as some families add in place
        for k, row in enumerate(rows[:n_joined]):
            if l == (row.leaves or n_layers):
                left[k] = batch[n_clean + k].clone() if row.leaves else batch[n_clean + k, list(row.read)]
        if l == end:
            if output is not None and arch.can_add_rows:
                output.data = output[:1].clone()  # all that the final norm gets
            break
        if l == begin:
            start_at(llm, arch, l, batch)
        elif joining:  # in place, as what has been read is sent back anyway
            output.data = batch.unflatten(-1, arch.streams)
        block = llm.blocks[l]
        silent = [(n_clean + k, row.silent[l]) for k, row in enumerate(rows[:n_joined]) if l in row.silent]
        if silent:
            silence(block, arch, batch, part, silent)
        if updates:
            added.before(block, batch)
        passing = [n_clean + k for k, row in enumerate(rows[:n_joined]) if l in row.passed_by]
        entered = batch[passing].unflatten(-1, arch.streams) if passing else None  # indexing copies
        output = hidden_states(block.output)
        if passing:
            output[passing] = entered.to(output.device)
        batch = output.flatten(2)
        if updates:
            truth = clean.c[l][first:n_tokens] if clean.c else None
            changed = relative_change(added.after(first), truth, n_clean)[n_clean : n_clean + n_joined]
            changed = changed.masked_fill_(early[:n_joined].to(changed.device), 0).amax(1)
            relative[:n_joined, l] = changed.to(relative.device)
    return left, before if end == n_layers else h[-1], relative


def _compared(clean, rows, left, unmodified, damage):
    """The changes of the outputs [4 or 1, len(read)] of rows that go on to the end; of others what they leave with."""
    found = list(left)
    for read in dict.fromkeys(row.read for row in rows if row.leaves is None):
        numbers = [k for k, row in enumerate(rows) if row.leaves is None and row.read == read]
        finals = torch.stack([unmodified[list(read)], *(left[k] for k in numbers)])
        next_tokens = [clean.ids[i + 1] if i + 1 < len(clean.ids) else -1 for i in read] if damage else None
        for k, change in zip(numbers, output_change(clean.llm, clean.arch, finals, next_tokens).unbind(1), strict=True):
            found[k] = change
    return found


def rounding_floor(clean, updates=False, change=None):
    """What rounding alone may do to a prompt's numbers: {} where it does not show (see `compares_in_batch`).

    Every feature of h_0 is moved by one rounding unit, up or down at random, in eight rows of their own; so each
    operation that follows rounds another number. change(k, h): what is done besides to the k-th of eight pairs of
    such rows, as changed runs round more where the clean one is sure of its token; or None.

    Returns the largest change of any row and token: `outputs`, ‖y − ȳ‖₂, or twice the most by which it differs
    within a pair, as either may be off, whichever is more; and if asked for `updates`, ‖c − c̄‖ / ‖c‖ of any block.
    """
    if not compares_in_batch(clean.llm, clean.h[0]):
        return {}
    n_rows, draw = 24 if change else 8, torch.Generator().manual_seed(0)
    eps = rounding_unit(clean.h[0])
    signs = torch.randint(0, 2, (n_rows, clean.h[0].shape[1]), generator=draw) * 2 - 1

    def nudge(k):
        def edit(h, before):
            h.addcmul_(h, (eps * signs[k].float()).to(h))
            if k >= 8:
                change((k - 8) // 2, h)

        return edit

    # of a long prompt its beginning does, and little is sent where the model is another process
    n_tokens = min(64 if change else 24, len(clean.ids)) if clean.arch.may_truncate else len(clean.ids)
    rows = [Row(0, range(n_tokens), nudge(k)) for k in range(n_rows)]
    changes, of_blocks = growing_batch(clean, rows, updates=updates, n_tokens=n_tokens)
    distance = torch.stack(changes)[:, 0]
    outputs = distance[:8].max()
    if change:
        outputs = torch.maximum(outputs, 2 * (distance[8::2] - distance[9::2]).abs().max())
    return {"outputs": outputs} | ({"updates": of_blocks.max()} if updates else {})
