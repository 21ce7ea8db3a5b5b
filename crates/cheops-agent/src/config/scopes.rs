//! `scopes_from` and `scopes_from_others` in `[mesh]`: which clients may choose sites with a scope, and what
//! the agent does with scopes of other clients.
//!
//! Invariant: a setting without effect is an error: a network with bits after its prefix, an empty list of
//! networks, a rule for other clients where every client may choose sites.

use std::{collections::BTreeSet, fmt, net::IpAddr, str::FromStr};

use serde::Deserialize;

/// Which clients may choose sites, and what the agent does with scopes of other clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scopes {
    /// The clients that may.
    pub from: ScopesFrom,
    /// What the agent does with scopes of other clients.
    pub others: OtherScopes,
}

/// Which clients may choose sites.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ScopesFrom {
    /// All clients.
    #[default]
    Everyone,
    /// Clients whose address is in one of these networks: at least one.
    Networks(Vec<Network>),
    /// Clients that send a token.
    Token,
}

/// What the agent does with the scope of a client that may not choose sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtherScopes {
    /// The request gets 403.
    #[default]
    Reject,
    /// The request is served as if it had no scope.
    Ignore,
}

/// A range of addresses: `10.0.0.0/8`, or one address alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// The first address. All bits after the prefix are 0.
    address: IpAddr,
    /// How many bits all addresses have in common.
    prefix: u8,
}

/// The bits of an address, the first one highest, and how many there are.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// A number whose first bits are set.
fn mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0)
}

impl Network {
    /// Whether an address is in this network. An IPv4 address that is written as an IPv6 one is still an
    /// IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let same_family = address.is_ipv4() == self.address.is_ipv4();
        same_family && (bits(address).0 ^ bits(self.address).0) & mask(self.prefix) == 0
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let is_none = || format!("`{text}` is no network: write it like 10.0.0.0/8 or fd00::/8");
        let address: IpAddr = address.parse().map_err(|_| is_none())?;
        if address.to_canonical() != address {
            let plain = address.to_canonical();
            return Err(format!("`{text}` stands for an IPv4 address: write {plain}"));
        }
        let (number, most) = bits(address);
        let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let prefix = match prefix {
            None => most,
            Some(prefix) => {
                let prefix = Some(prefix).filter(is_number).and_then(|text| text.parse().ok());
                prefix.filter(|prefix| *prefix <= most).ok_or_else(|| {
                    format!("`{text}` is no network: after the `/` stands a number up to {most}")
                })?
            }
        };
        if number & !mask(prefix) != 0 {
            let first = number & mask(prefix);
            let first: IpAddr = match address {
                IpAddr::V4(_) => std::net::Ipv4Addr::from_bits((first >> 96) as u32).into(),
                IpAddr::V6(_) => std::net::Ipv6Addr::from_bits(first).into(),
            };
            return Err(format!(
                "`{text}` has bits after its prefix: write {first}/{prefix} for the network, or {address} for that address alone"
            ));
        }
        Ok(Self { address, prefix })
    }
}

/// `scopes_from` as it is written.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`scopes_from` is \"everyone\", \"token\" or a list of networks")]
pub(super) enum FromSection {
    Word(String),
    Networks(Vec<String>),
}

impl Scopes {
    pub(super) fn read(from: Option<FromSection>, others: Option<&str>) -> Result<Self, String> {
        let from = match from {
            None => ScopesFrom::Everyone,
            Some(FromSection::Word(word)) => match word.as_str() {
                "everyone" => ScopesFrom::Everyone,
                "token" => ScopesFrom::Token,
                other => {
                    return Err(format!(
                        "`mesh.scopes_from` is `{other}`: write everyone, token, or a list of networks like ['10.0.0.0/8']"
                    ));
                }
            },
            Some(FromSection::Networks(texts)) => ScopesFrom::Networks(networks(&texts)?),
        };
        let others = match others {
            None => OtherScopes::default(),
            Some("reject") => OtherScopes::Reject,
            Some("ignore") if from == ScopesFrom::Everyone => {
                return Err("`mesh.scopes_from_others` is `ignore`, and everyone may choose sites: write `scopes_from`, too".to_owned());
            }
            Some("ignore") => OtherScopes::Ignore,
            Some(other) => {
                return Err(format!(
                    "`mesh.scopes_from_others` is `{other}`: write reject or ignore"
                ));
            }
        };
        Ok(Self { from, others })
    }
}

fn networks(texts: &[String]) -> Result<Vec<Network>, String> {
    if texts.is_empty() {
        return Err("`mesh.scopes_from` is an empty list, so that no client could choose sites: name a network".to_owned());
    }
    let mut seen = BTreeSet::new();
    let mut networks = Vec::new();
    for text in texts {
        let network: Network =
            text.parse().map_err(|error| format!("`mesh.scopes_from`: {error}"))?;
        if !seen.insert(network) {
            return Err(format!("`mesh.scopes_from` names `{network}` twice: remove one"));
        }
        networks.push(network);
    }
    Ok(networks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_a_network_or_not() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.0/8", "a00::1", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1/32", "127.0.0.2", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::/0", "fe80::1", true),
            ("::/0", "192.0.2.1", false),
            ("::/0", "::ffff:192.0.2.1", false),
            ("::1", "::1", true),
            ("192.0.2.128/25", "192.0.2.127", false),
            ("192.0.2.128/25", "192.0.2.129", true),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), expected, "{network} {address}");
        }
    }

    #[test]
    fn text_that_is_not_a_network_is_rejected() {
        for (text, expected) in [
            ("", "is no network"),
            ("10.0.0.0/", "a number up to 32"),
            ("10.0.0.0/33", "a number up to 32"),
            ("10.0.0.0/+8", "a number up to 32"),
            ("10.0.0.0/-1", "a number up to 32"),
            ("10.0.0.0/8/8", "a number up to 32"),
            ("fd00::/129", "a number up to 128"),
            ("10.0.0", "is no network"),
            ("10.0.0.0/255.0.0.0", "a number up to 32"),
            ("site1.example", "is no network"),
            ("10.0.0.1/8", "write 10.0.0.0/8 for the network, or 10.0.0.1"),
            ("fd00::1/8", "write fd00::/8 for the network"),
            ("::ffff:10.0.0.0/104", "write 10.0.0.0"),
            ("1.2.3.4/0", "write 0.0.0.0/0"),
        ] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn scopes_from_is_everyone_token_or_networks() {
        let read = |text: &str| {
            let text = format!("site = 'a'\n[mesh]\n{text}");
            let config = super::super::Config::from_toml(&text, std::path::Path::new("/"));
            config.map(|config| config.mesh.scopes)
        };
        let networks = |texts: &[&str]| {
            ScopesFrom::Networks(texts.iter().map(|text| text.parse().unwrap()).collect())
        };
        for (text, from, others) in [
            ("", ScopesFrom::Everyone, OtherScopes::Reject),
            (
                "scopes_from = 'everyone'\nscopes_from_others = 'reject'",
                ScopesFrom::Everyone,
                OtherScopes::Reject,
            ),
            ("scopes_from = 'token'", ScopesFrom::Token, OtherScopes::Reject),
            (
                "scopes_from = 'token'\nscopes_from_others = 'ignore'",
                ScopesFrom::Token,
                OtherScopes::Ignore,
            ),
            (
                "scopes_from = ['10.0.0.0/8', '::1']\nscopes_from_others = 'reject'",
                networks(&["10.0.0.0/8", "::1/128"]),
                OtherScopes::Reject,
            ),
        ] {
            assert_eq!(read(text), Ok(Scopes { from, others }), "{text}");
        }
        for (text, expected) in [
            ("scopes_from = 'nobody'", "line 3: `mesh.scopes_from` is `nobody`"),
            ("scopes_from = ''", "line 3: `mesh.scopes_from` is ``"),
            ("scopes_from = '10.0.0.0/8'", "a list of networks like ['10.0.0.0/8']"),
            ("scopes_from = []", "line 3: `mesh.scopes_from` is an empty list"),
            ("scopes_from = ['x']", "line 3: `mesh.scopes_from`: `x` is no network"),
            ("scopes_from = [10]", "is \"everyone\", \"token\" or a list of networks"),
            ("scopes_from = true", "is \"everyone\", \"token\" or a list of networks"),
            ("scopes_from = ['::1', '::1/128']", "names `::1/128` twice"),
            ("scopes_from_others = 'ignore'", "line 3: `mesh.scopes_from_others` is `ignore`, and"),
            (
                "scopes_from = 'everyone'\nscopes_from_others = 'ignore'",
                "line 4: `mesh.scopes_from_others` is `ignore`, and everyone",
            ),
            (
                "scopes_from = 'token'\nscopes_from_others = 'drop'",
                "line 4: `mesh.scopes_from_others` is `drop`",
            ),
            ("scope_from = 'token'", "unknown field `scope_from`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
