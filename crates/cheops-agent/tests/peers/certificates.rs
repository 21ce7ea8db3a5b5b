//! Sites that recognise each other by certificates of an operator's CA.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use cheops_agent::{config::Pki as Files, peers::State, trust::pki::Pki};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    version::{TLS12, TLS13},
};
use tempfile::TempDir;
use tokio::{io::AsyncReadExt as _, net::TcpStream};
use tokio_rustls::TlsConnector;

use super::{
    ca::{Ca, Wanted},
    greeting::shows,
    site::{Plan, Site, linked, name, pair, plans, until},
};

fn files(ca: &Ca, (certificate, key): (std::path::PathBuf, std::path::PathBuf)) -> Files {
    Files { ca: ca.path("ca.pem"), certificate, key, revoked: Some(ca.path("revoked.pem")) }
}

/// Lets sites recognise each other by certificates, and know no keys before they meet.
fn certified(plans: &mut [Plan], ca: &Ca) -> Vec<TempDir> {
    let mut kept = Vec::new();
    for plan in plans {
        let site = plan.config.site.to_string();
        plan.config.pki = Some(files(ca, ca.site(&site)));
        plan.config.sites.values_mut().for_each(|peer| peer.key = None);
        let data = tempfile::tempdir().unwrap();
        data.path().clone_into(&mut plan.config.data);
        kept.push(data);
    }
    kept
}

#[tokio::test(flavor = "multi_thread")]
async fn sites_with_certificates_work_together_and_learn_their_keys() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let mut both = pair();
    let _data = certified(&mut both, &ca);
    let [one, two] = both;
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    one.submit("thing", &["site1", "site2"], 10).await;
    until("site2 has it", || async { two.operations().await == 1 }).await;
    assert_eq!(one.peer("site2").key, Some(super::site::identity("site2").public()));
    assert!(one.peer("site2").certificate.is_some());
    // What was learned outlives the agent.
    let one = one.stop().await.start().await;
    assert_eq!(one.peer("site2").key, Some(super::site::identity("site2").public()));
}

/// What each of two sites shows of the other, once `wrong` has been done to the second.
async fn refused(ca: &Ca, wrong: impl FnOnce(&mut Plan), expected: [&str; 2]) {
    let mut both = pair();
    let _data = certified(&mut both, ca);
    let [one, mut two] = both;
    wrong(&mut two);
    let (one, two) = (one.start().await, two.start().await);
    shows(&one, "site2", expected[0]).await;
    shows(&two, "site1", expected[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_say_why_a_certificate_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(&directory.path().join("ca"));
    let other = Ca::new(&directory.path().join("other"));
    let two = Wanted::of("site2", "DNS:site2");
    let at = |file: &str, from, until| files(&ca, ca.issue(file, &Wanted { from, until, ..two }));
    let expired = at("expired", "-2 days", "-1 day");
    let early = at("early", "+1 day", "+2 days");
    let gone = at("gone", "-1 day", "+1 day");
    ca.revoke("gone");
    let foreign = files(&other, other.site("site2"));
    for (pki, here, there) in [
        (
            Some(expired),
            "`site1` refuses `site2`: the certificate of `site2`",
            "`site1` refuses `site2`: the certificate of `site2` expired at ",
        ),
        (Some(early), "is valid from ", "the certificate of `site2` is valid from "),
        (
            Some(gone),
            "was revoked",
            "`site1` refuses `site2`: the certificate of `site2` was revoked",
        ),
        (Some(foreign), "is not of the CA in `trust.ca`", "is not of the CA in `trust.ca`"),
        (
            None,
            "set it at `site2`, too, or at no site",
            "`site1` has `[trust]` in its configuration",
        ),
    ] {
        let wrong = |plan: &mut Plan| {
            if pki.is_none() {
                let key = super::site::identity("site1").public();
                plan.config.sites.get_mut(&name("site1")).unwrap().key = Some(key);
            }
            plan.config.pki = pki;
        };
        refused(&ca, wrong, [here, there]).await;
    }
}

#[test]
fn a_certificate_that_others_would_refuse_is_not_used_and_one_that_is_over_is() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(&directory.path().join("ca"));
    let other = Ca::new(&directory.path().join("other"));
    let one = Wanted::of("site1", "DNS:site1");
    let open = |files: &Files| Pki::open(&name("site1"), files);
    let usage = "extendedKeyUsage = serverAuth";
    let mut mixed = files(&other, other.site("site1"));
    mixed.ca = ca.path("ca.pem");
    for (files, expected) in [
        (files(&ca, ca.site("site2")), "names `site2`, and not `site1`: it needs"),
        (files(&ca, ca.issue("server", &Wanted { usage, ..one })), "needs clientAuth"),
        (mixed, "is not of the CA"),
    ] {
        let error = open(&files).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let old = Wanted { from: "-2 days", until: "-1 day", ..one };
    let pki = open(&files(&ca, ca.issue("old", &old))).unwrap();
    let fault = pki.fault(std::time::SystemTime::now()).unwrap().says("`site1`");
    assert!(fault.contains("expired at"), "{fault}");
}

#[test]
fn a_new_certificate_is_read_and_a_bad_one_leaves_the_old() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let own = files(&ca, ca.site("site1"));
    let pki = Pki::open(&name("site1"), &own).unwrap();
    let until = pki.valid().until;
    let one = Wanted::of("site1", "DNS:site1");
    let put = |(certificate, key): (std::path::PathBuf, std::path::PathBuf)| {
        fs::copy(certificate, &own.certificate).unwrap();
        fs::copy(key, &own.key).unwrap();
        pki.look();
    };
    for (file, wanted, expected) in [
        ("b", Wanted { until: "-1 minute", ..one }, "expired at"),
        ("c", Wanted { alternative: "DNS:site2", ..one }, "names `site2`"),
    ] {
        put(ca.issue(file, &wanted));
        let why = pki.failure().unwrap();
        assert!(why.contains(expected), "{why}");
        assert_eq!(pki.valid().until, until);
    }
    fs::write(&own.certificate, "no certificate").unwrap();
    pki.look();
    assert!(pki.failure().unwrap().contains("is not a certificate"));
    put(ca.issue("d", &Wanted { until: "+200 days", ..one }));
    assert_eq!(pki.failure(), None);
    assert!(pki.valid().until > until + Duration::from_hours(24));
}

/// Takes any server: the one who looks is an attacker.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Dials a site with some certificate, and reads what it says to that.
async fn attack(
    site: &Site,
    shown: Option<(&Path, &Path)>,
    version: &'static rustls::SupportedProtocolVersion,
) -> io::Result<Vec<u8>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone));
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_file_iter(certificate).unwrap();
            let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
            builder
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
                .unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(site.peers.address()).await.unwrap();
    let name = ServerName::try_from("site.cheops").unwrap();
    let mut io = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    let mut said = vec![0; 64];
    let count = tokio::time::timeout(Duration::from_secs(20), io.read(&mut said)).await??;
    said.truncate(count);
    Ok(said)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_no_certificate_that_counts_is_not_heard_and_others_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(&directory.path().join("ca"));
    let other = Ca::new(&directory.path().join("other"));
    let two = Wanted::of("site2", "DNS:site2");
    let expired = ca.issue("expired", &Wanted { from: "-2 days", until: "-1 day", ..two });
    let early = ca.issue("early", &Wanted { from: "+1 day", until: "+2 days", ..two });
    let server = ca.issue("server", &Wanted { usage: "extendedKeyUsage = serverAuth", ..two });
    let gone = ca.issue("gone", &two);
    ca.revoke("gone");
    let (foreign, good) = (other.site("site2"), ca.issue("good", &two));
    let mut plans = plans(3);
    let _data = certified(&mut plans, &ca);
    let mut sites = Vec::new();
    for plan in plans {
        sites.push(plan.start().await);
    }
    linked(&sites.iter().collect::<Vec<_>>()).await;
    let one = &sites[0];
    for (shown, version, expected) in [
        (None, &TLS13, "CertificateRequired"),
        (Some(&foreign), &TLS13, "UnknownCA"),
        (Some(&expired), &TLS13, "CertificateExpired"),
        (Some(&early), &TLS13, "CertificateExpired"),
        (Some(&server), &TLS13, "UnsupportedCertificate"),
        (Some(&gone), &TLS13, "CertificateRevoked"),
        (Some(&good), &TLS12, "ProtocolVersion"),
    ] {
        let shown = shown.map(|(certificate, key)| (&**certificate, &**key));
        let refusal = attack(one, shown, version).await.unwrap_err().to_string();
        assert!(refusal.contains(expected), "{refusal} instead of {expected}");
    }
    // A good certificate leads to a greeting, and to nothing more without a key.
    let said = attack(one, Some((&good.0, &good.1)), &TLS13).await.unwrap();
    assert!(!said.is_empty());
    assert!(["site2", "site3"].iter().all(|site| one.reaches(site)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_ends_when_its_certificate_does_and_is_made_anew_with_another() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let mut both = pair();
    let _data = certified(&mut both, &ca);
    let [one, two] = both;
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    ca.revoke("site2");
    shows_after(&one, "site2", "the certificate of `site2` was revoked").await;
    // It gets another one, and nobody is started again.
    let (certificate, key) = ca.issue("again", &Wanted::of("site2", "DNS:site2"));
    fs::rename(key, ca.path("site2.key")).unwrap();
    fs::rename(certificate, ca.path("site2.pem")).unwrap();
    linked(&[&one, &two]).await;
}

/// Waits until a link is gone for a reason.
async fn shows_after(site: &Site, other: &str, reason: &str) {
    until(reason, || async {
        let peer = site.peer(other);
        peer.state != State::Reachable && peer.error.is_some_and(|why| why.contains(reason))
    })
    .await;
}
