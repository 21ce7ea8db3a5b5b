//! Several sites on loopback, with quick links.

use std::{fs, path::Path};

use super::field::{
    agent::{Agent, peer},
    eventually,
    ports::unused,
};

/// So many sites that all see each other, with more sections in their configurations.
pub(crate) fn sites(directory: &Path, count: usize, settings: &str) -> Vec<Agent> {
    let places: Vec<_> = (1..=count).map(|n| (format!("site{n}"), unused(), unused())).collect();
    let sites: Vec<Agent> = places
        .iter()
        .map(|(name, api, peers)| {
            let others = places.iter().filter(|(other, ..)| other != name);
            let others: String = others
                .map(|(name, _, at)| peer(name, &at.to_string(), &directory.join(name)))
                .collect();
            let config = format!(
                "site = '{name}'\nwork = 'work'\n{others}[links]\nheartbeat = '200ms'\nsilence = '1s'\nretry = '500ms'\n{settings}[listen]\napi = '{api}'\npeers = '{peers}'\n"
            );
            let place = directory.join(name);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("site.toml"), config).unwrap();
            let mut agent = Agent::on_loopback(name, &api.to_string(), &place);
            agent.start();
            agent
        })
        .collect();
    sites.iter().for_each(Agent::wait_until_ready);
    eventually("all sites see each other", || {
        sites.iter().all(|site| site.reachable().len() == count - 1)
    });
    sites
}

/// Cuts a site off from all others, and waits until it has noticed.
pub(crate) fn pause(site: &Agent) {
    turn(site, "pause");
    eventually("it is alone", || site.reachable().is_empty());
}

/// Lets a site's links come back.
pub(crate) fn resume(site: &Agent) {
    turn(site, "resume");
}

fn turn(site: &Agent, how: &str) {
    let path = format!("/api/v1/sites/{}/{how}", site.name);
    let (status, text) = site.post(&path, &serde_json::json!({})).unwrap();
    assert_eq!(status, 204, "{text}");
}
