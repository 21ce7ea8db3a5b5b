//! Resources × sites: what any agent tells of all of them, with every site in reach and during a cut.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use cheops_agent::api::model::{Grid, Resources, State, Submit};
use field::{Field, agent::Agent, submit};

/// Each row as `id: site=state …`, with the one who tells after a `/`.
fn seen(site: &Agent, query: &str) -> Vec<String> {
    let grid: Grid = site.try_get(&format!("/api/v1/grid{query}")).unwrap();
    let row = |row: &cheops_agent::api::model::GridRow| {
        let cells = row.cells.iter().map(|(site, cell)| {
            let by = cell.told_by.as_deref().map(|by| format!("/{by}")).unwrap_or_default();
            format!(" {site}={:?}{by}", cell.state)
        });
        format!("{}:{}", row.id, cells.collect::<Vec<_>>().concat())
    };
    grid.rows.iter().map(row).collect()
}

fn create(site: &Agent, id: &str, sites: &str, command: &str) {
    let asked = submit(command, "set");
    let wait = Some("0s".to_owned());
    let asked = Submit { sites: Some(sites.to_owned()), keep_going: true, wait, ..asked };
    site.exec(id, &asked);
}

#[test]
fn any_agent_tells_of_all_sites_and_says_whose_word_it_is() {
    let field = Field::new(3);
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    create(one, "a", "site1 & site2", "true");
    create(two, "b", "site2 & site3", "false");
    create(three, "c", "site3", "true");
    field.agreed("a", &[0, 1]);
    field.agreed("b", &[1, 2]);
    field.agreed("c", &[2]);
    let all =
        ["a: site1=Settled site2=Settled", "b: site2=Failed site3=Failed", "c: site3=Settled"];
    for site in &field.sites {
        assert_eq!(seen(site, ""), all);
    }
    assert_eq!(seen(one, "?state=failed"), all[1..2]);
    assert_eq!(seen(one, "?site=site1"), all[..1]);
    assert_eq!(seen(one, "?contains=c"), all[2..]);
    assert_eq!(seen(one, "?limit=1&after=a"), all[1..2]);
    assert_eq!(seen(one, "?local=true"), ["a: site1=Settled"]);

    let theirs: Resources = one.try_get("/api/v1/resources?at=site3&state=failed").unwrap();
    assert_eq!(theirs.site, "site3");
    assert_eq!(
        theirs.resources.iter().map(|r| (&*r.id, r.state)).collect::<Vec<_>>(),
        [("b", State::Failed)]
    );

    field.cut();
    create(one, "a", "site1 & site2", "true");
    field::eventually("what site2 has yet to run is told", || {
        seen(one, "") == ["a: site1=Pending site2=Pending/site1"]
    });
    let grid: Grid = one.try_get("/api/v1/grid").unwrap();
    let silent: Vec<(&str, bool)> =
        grid.sites.iter().map(|site| (&*site.name, site.last_seen.is_some())).collect();
    assert_eq!(silent, [("site1", false), ("site2", true), ("site3", true)]);
    assert_eq!(one.ask("/api/v1/resources?at=site3").unwrap().0, 502);
    let shared: Resources = one.try_get("/api/v1/resources?site=site2").unwrap();
    assert_eq!(shared.resources.len(), 1);

    field.heal();
    field.agreed("a", &[0, 1]);
    assert_eq!(seen(one, ""), all);
}
