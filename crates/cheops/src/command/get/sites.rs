//! `cheops get sites`, and `cheops site list`.

use cheops_agent::api::model::{Site, Sites};

use crate::{
    client::{Client, Path},
    command::List,
    report::Failure,
    table::{Cell, Table},
    words::{self, NONE},
};

/// The sites with these names; all of them if none is named.
pub(crate) fn fetch(client: &Client, names: &[String]) -> Result<Sites, Failure> {
    let mut sites: Sites = client.get(&Path::api("sites"))?;
    for name in names {
        if !sites.sites.iter().any(|site| site.name == *name) {
            return Err(unknown(&sites, name));
        }
    }
    if !names.is_empty() {
        sites.sites.retain(|site| names.contains(&site.name));
    }
    Ok(sites)
}

/// A site that the agent does not know.
pub(crate) fn unknown(sites: &Sites, name: &str) -> Failure {
    let known: Vec<&str> = sites.sites.iter().take(20).map(|site| site.name.as_str()).collect();
    Failure::input(format!("unknown site `{name}`")).hint(format!(
        "known at {} are {}",
        sites.here,
        words::listed(&known)
    ))
}

impl List for Sites {
    type Item = Site;

    fn items(&self) -> &[Site] {
        &self.sites
    }

    fn name(site: &Site) -> String {
        format!("site/{}", site.name)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table =
            Table::new(["NAME", "STATE", "RTT", "SEEN", "LAG", "RESOURCES", "UNANSWERED"]);
        if wide {
            table.titles(["ADDRESS", "QUEUE", "ERROR"]);
        }
        for site in &self.sites {
            let none = || NONE.to_owned();
            let mut row: Vec<Cell> = vec![
                site.name.as_str().into(),
                words::site_state(site.state),
                site.round_trip_ms.map_or_else(none, words::round_trip).into(),
                words::ago_or_none(site.last_seen.as_deref()).into(),
                site.lag_ms.map_or_else(none, words::took).into(),
                site.resources.to_string().into(),
                site.unanswered.to_string().into(),
            ];
            if wide {
                let queue = site.queue;
                let waiting = if queue.messages == 0 {
                    none()
                } else {
                    format!("{} ({})", queue.messages, words::size(queue.bytes as u64))
                };
                row.extend([
                    site.address.clone().unwrap_or_else(none).into(),
                    waiting.into(),
                    site.error.clone().unwrap_or_else(none).into(),
                ]);
            }
            table.row(row);
        }
        table
    }

    fn empty(&self) -> String {
        "No sites.".to_owned()
    }
}
