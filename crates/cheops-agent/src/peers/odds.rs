//! What is said of agents that do not recognise each other: at the end that dialled, and at the one that was dialled.
//!
//! What must stay true: each end says whose fault it is, as far as it can know, and what to do.

use std::{io, net::IpAddr, time::SystemTime};

use rustls::AlertDescription;

use super::{Shared, slot::Slot};
use crate::trust::{
    Tls,
    authority::{Refusal, Use, moment},
    tls::{self, UnknownKey},
};

/// Why a site that was dialled is not linked, if that is a matter of certificates.
pub(super) fn dialled(shared: &Shared, slot: &Slot, error: &io::Error) -> Option<String> {
    let (here, site, address) = (&shared.here, &slot.site, &slot.place().address);
    if let Some(refusal) = tls::not_taken(error) {
        let why = refusal.says(&format!("`{site}`"));
        return Some(format!("`{here}` refuses `{site}`: {why}"));
    }
    if tls::is_other_way(error) {
        return Some(if shared.tls.pki().is_some() {
            format!(
                "{address} shows no certificate, and `{here}` has `[trust]` in its configuration: set it at `{site}`, too, or at no site"
            )
        } else {
            format!(
                "{address} does not take keys without certificates: if it is the port for other agents, `{site}` has `[trust]` in its configuration, and `{here}` has not; set it at all sites, or at none"
            )
        });
    }
    let pki = shared.tls.pki()?;
    if let Some(UnknownKey { key, .. }) = tls::why(error) {
        return Some(format!(
            "`{site}` has a certificate, and a key that `{here}` does not take for its own, {key}: was it removed, or set up again? Let it join"
        ));
    }
    let own = format!("`{here}`");
    let why = match tls::alert(error)? {
        // Told with the same word by TLS; only here is it known which.
        AlertDescription::CertificateExpired => match pki.fault(SystemTime::now()) {
            Some(refusal) => refusal.says(&own),
            None => format!(
                "the certificate of {own} is not valid there, and is here until {}: compare the clocks",
                moment(pki.valid().until)
            ),
        },
        AlertDescription::UnknownCA => {
            format!(
                "the certificate of {own} is not of the CA in `trust.ca` of `{site}`: use one CA at all sites"
            )
        }
        AlertDescription::CertificateRevoked => Refusal::Revoked.says(&own),
        AlertDescription::UnsupportedCertificate => Refusal::Use(Use::Dialling).says(&own),
        AlertDescription::BadCertificate => {
            format!("the certificate of {own} does not name it, or can't be read")
        }
        AlertDescription::CertificateRequired => Refusal::Missing.says(&own),
        _ => return None,
    };
    Some(format!("`{site}` refuses `{here}`: {why}"))
}

/// Why somebody who dialled from an address is not let in.
pub(super) fn arrived(shared: &Shared, ip: IpAddr, error: &io::Error) -> String {
    let (here, with_pki) = (&shared.here, shared.tls.pki().is_some());
    if let Some(UnknownKey { key, site }) = tls::why(error) {
        if let Some(site) = shared.members.removed_with(&key, site.as_ref()) {
            if shared.members.others().contains_key(&site) {
                return format!(
                    "`{site}` has another key now: an agent at {ip} has one that was removed, {key}"
                );
            }
            return format!(
                "`{site}` was removed from the federation, and an agent at {ip} has its key or its name: if it should come back, run `cheops token create` at `{here}` and `cheops join TOKEN` at `{site}`"
            );
        }
        return format!(
            "an agent at {ip} has a key that is not known at `{here}`: if it is one of yours, let it join, or put it into the configuration with key = \"{key}\""
        );
    }
    if let Some(refusal) = tls::not_taken(error) {
        return refusal.says(&format!("an agent at {ip}"));
    }
    if tls::is_other_way(error) {
        let (shows, has) = if with_pki { ("no", "has") } else { ("a", "has no") };
        return format!(
            "an agent at {ip} shows {shows} certificate, and `{here}` {has} `[trust]` in its configuration: set it at all sites, or at none"
        );
    }
    if with_pki && tls::alert(error).is_some() {
        return format!("an agent at {ip} refuses the certificate of `{here}`: {error}");
    }
    if tls::is_unknown_there(error) {
        return format!("an agent at {ip} does not know the key of `{here}`");
    }
    format!("whoever dialled from {ip} is not an agent: {error}")
}

/// Why a site could not be visited, if that is a matter of certificates.
pub(super) fn visited(tls: &Tls, error: &io::Error) -> Option<String> {
    if let Some(refusal) = tls::not_taken(error) {
        return Some(refusal.says("the other site"));
    }
    if tls::is_other_way(error) {
        let why = "one of them has `[trust]` in its configuration, and the other has not: set it at all sites, or at none";
        return Some(why.to_owned());
    }
    let refused = tls.pki().is_some() && tls::alert(error).is_some();
    refused.then(|| format!("the certificate of this site is refused there ({error})"))
}
