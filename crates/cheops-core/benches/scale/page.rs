//! The numbers as a table and as a page. What the page says in words must be true of the numbers
//! that are put into it: read it again after each `--write`.

use std::fmt::Write as _;

use crate::{CUT, Measured, SPAN};

/// The runs at growing numbers of sites, and those at growing numbers of operations.
pub(crate) fn series(measured: &[Measured]) -> (Vec<&Measured>, Vec<&Measured>) {
    let most = measured.iter().map(|m| m.size.sites).max().unwrap_or(0);
    let by_sites = measured.iter().filter(|m| m.size.operations == m.size.sites * 100).collect();
    let by_operations = measured.iter().filter(|m| m.size.sites == most).collect();
    (by_sites, by_operations)
}

pub(crate) fn print(measured: &[Measured]) {
    println!("{}", table(measured));
    for m in measured {
        println!(
            "{} sites, {} operations: {:.0} s here, {:.1} million inputs, {:.1} µs each",
            grouped(m.size.sites as f64),
            grouped(m.size.operations as f64),
            m.took,
            m.inputs as f64 / 1e6,
            m.took * 1e6 / m.inputs as f64
        );
    }
}

/// 12345.6 as `12,346`.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn table(measured: &[Measured]) -> String {
    let mut text = String::from(
        "| sites | operations | peers | push | repair | compare | apart | agree again (s) | memory |\n\
         |--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for m in measured {
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.1} msg, {} B | {:.1} msg, {} B | {:.1} msg/s, {} B/s \
             | {:.0} % | {:.1}, {:.1}, {:.1} | {} kB |",
            grouped(m.size.sites as f64),
            grouped(m.size.operations as f64),
            m.peers,
            m.per_operation(m.push.messages),
            grouped(m.per_operation(m.push.bytes)),
            m.per_operation(m.repair.messages),
            grouped(m.per_operation(m.repair.bytes)),
            m.per_second(m.compare.messages),
            grouped(m.per_second(m.compare.bytes)),
            m.apart * 100.0,
            m.agree[0],
            m.agree[1],
            m.agree[2],
            grouped(m.memory / 1e3),
        );
    }
    text
}

pub(crate) fn page(measured: &[Measured]) -> String {
    let largest = &measured[measured.len() - 1];
    let smallest = &measured[0];
    let idle = largest.peers / 10.0;
    let records = largest.size.operations as f64 * 5.0 * 6.0 / largest.size.sites as f64;
    format!(
        "\
# Scale

What many sites cost: messages, bytes, time and memory, and how each grows. The replicas are the real ones; links, disks
and the clock are those of the simulator (`crates/cheops-core/tests/support/world.rs`), so that {span} seconds of a
thousand sites take one or two minutes of one core, and every run gives the same numbers, memory aside.

```
cargo bench -p cheops-core --bench scale                 # prints the table
cargo bench -p cheops-core --bench scale -- --write      # writes this page and the plot as well
```

## The story

Each of the resources, ten times as many as sites, lives on 3 to 7 sites drawn at random. Operations come in evenly over
{span} seconds, each at one of its resource's sites, nine of ten an `inc` and the tenth a `set`; one weighs {weight:.0}
bytes and runs for 10 to 100 ms. Messages take 10 to 300 ms, and one of a thousand gets lost. All the time a tenth of the
sites is cut off from all others; every {cut} seconds it is another tenth, and sites notice within 2 seconds. In the end
all links come back, and we wait until each resource is the same at all of its sites: same records, same block, nothing
left to run.

## The numbers

{table}
- *peers*: the sites that a site shares at least one resource with.
- *push*, for each operation: the operation itself to the other sites, and the reply of each site to all others.
- *repair*, for each operation: records that a site was found to lack when it compared with another.
- *compare*, for each site and second: digests, versions and requests.
- *apart*: the resources that were not the same everywhere at the moment when the links came back. *agree again*: from
  then on, until half of these, 99 % of them and all of them were.
- *memory*: resident memory for each site, with nothing but names shared between sites. It is measured by building all sites again
  from their records, in the same process, and dividing what that added. Commands here print nothing; what they print in
  earnest comes on top.

![Messages per operation, seconds to agree and memory per site](scale.svg)

## What they mean

**An operation costs what its resource's sites cost, whatever the number of all sites.** With n sites it is pushed n − 1
times, and each of the n replies as often: n² − 1 messages, 26 on average for 3 to 7 sites, less those that are not sent
because a site is known to be cut off. From {few} to {many} sites the number stays the same ({push_few:.1} and
{push_many:.1}), and so it does from {rare} to {often} operations. The square is that of the resource's sites alone: a
resource on 7 sites costs 48 messages, one on 50 would cost 2,499. Replies are small, but there are many of them: most of
the bytes are theirs.

**Repair is what cuts cost.** A record that could not be pushed is sent later by whoever compares first, and often more than
once: a site that comes back is told the same by several others. It costs less for each operation when there are more of
them, since one exchange then carries several records.

**Comparing is what being there costs.** A site compares with each peer every 10 seconds: {peers:.0} peers are {idle:.0} messages of
12 bytes a second if all links hold and nothing is new. Here a fifth of the pairs is cut at any time and says nothing; in
return, digests differ while records are on their way, and are answered. This part grows with peers and not with sites:
peers level off once there are many more sites than a site has others to share resources with. It grows with
operations only as long as these are rare, because a resource begins to exist, and to be compared, with its first one.

**Agreeing again takes one exchange.** It begins when the sites notice each other, within 2 seconds here, and takes two or
three messages each way and the runs that were missed. It depends neither on the number of sites, nor on the number of
operations, as long as what was missed fits in a few messages (4 MB at a time). What is left to chance is a digest that was
compared while records were on their way, which waits for the next round.

**Memory follows the records.** A site here holds about {records} of them: its share of the operations, and a reply to each
from each of the resource's sites. The rest is what a resource and a peer cost even if nothing happens.
",
        span = SPAN,
        cut = CUT,
        weight = largest.weight,
        table = table(measured),
        few = grouped(smallest.size.sites as f64),
        many = grouped(largest.size.sites as f64),
        push_few = smallest.per_operation(smallest.push.messages),
        push_many = largest.per_operation(largest.push.messages),
        rare = grouped(measured[2].size.operations as f64),
        often = grouped(largest.size.operations as f64),
        peers = largest.peers,
        records = grouped((records / 100.0).round() * 100.0),
    )
}
