//! A CA of an operator's own, made with openssl: see docs/links.md, which has the same commands.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) const BOTH: &str = "extendedKeyUsage = serverAuth, clientAuth";

pub(crate) struct Ca {
    directory: PathBuf,
}

/// What a certificate is to say.
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    /// In the words of openssl: `DNS:site1`.
    pub(crate) alternative: &'a str,
    pub(crate) usage: &'a str,
    /// When it begins and ends, in the words of date(1).
    pub(crate) from: &'a str,
    pub(crate) until: &'a str,
}

impl<'a> Wanted<'a> {
    pub(crate) fn of(name: &'a str, alternative: &'a str) -> Self {
        Self { name, alternative, usage: BOTH, from: "-1 hour", until: "+90 days" }
    }
}

fn openssl(directory: &Path, arguments: &[&str]) {
    let done = Command::new("openssl").current_dir(directory).args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn date(when: &str) -> String {
    let done = Command::new("date").args(["-u", "-d", when, "+%Y%m%d%H%M%SZ"]).output().unwrap();
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

impl Ca {
    pub(crate) fn new(directory: &Path) -> Self {
        fs::create_dir_all(directory).unwrap();
        let files = "database = index.txt\nnew_certs_dir = .\nrand_serial = yes\ncrlnumber = crlnumber\ncertificate = ca.pem\nprivate_key = ca.key";
        let rules =
            "default_md = sha256\ndefault_crl_days = 30\nunique_subject = no\npolicy = policy";
        let config = format!(
            "[ca]\ndefault_ca = own\n[own]\n{files}\n{rules}\n[policy]\ncommonName = supplied\n"
        );
        fs::write(directory.join("ca.cnf"), config).unwrap();
        fs::write(directory.join("index.txt"), "").unwrap();
        fs::write(directory.join("crlnumber"), "01").unwrap();
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let names =
            ["-subj", "/CN=Cheops CA", "-days", "3650", "-keyout", "ca.key", "-out", "ca.pem"];
        openssl(directory, &[&["req", "-x509"], &key[..], &names[..]].concat());
        let ca = Self { directory: directory.to_owned() };
        ca.list();
        ca
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes `NAME.pem` and `NAME.key`.
    pub(crate) fn issue(&self, file: &str, wanted: &Wanted<'_>) -> (PathBuf, PathBuf) {
        let Wanted { name, alternative, usage, from, until } = wanted;
        let [csr, key, pem, extensions] =
            ["csr", "key", "pem", "ext"].map(|end| format!("{file}.{end}"));
        let subject = format!("/CN={name}");
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let files = ["-subj", &subject, "-keyout", &key, "-out", &csr];
        openssl(&self.directory, &[&["req", "-new"], &curve[..], &files[..]].concat());
        let text = format!(
            "basicConstraints = critical, CA:FALSE\n{usage}\nsubjectAltName = {alternative}\n"
        );
        fs::write(self.path(&extensions), text).unwrap();
        let (from, until) = (date(from), date(until));
        let times = ["-startdate", &from, "-enddate", &until];
        let files = ["-in", &csr, "-out", &pem, "-extfile", &extensions];
        let ca = ["ca", "-batch", "-notext", "-config", "ca.cnf"];
        openssl(&self.directory, &[&ca[..], &times[..], &files[..]].concat());
        (self.path(&pem), self.path(&key))
    }

    /// A certificate as a site has it.
    pub(crate) fn site(&self, name: &str) -> (PathBuf, PathBuf) {
        self.issue(name, &Wanted::of(name, &format!("DNS:{name}")))
    }

    /// Takes a certificate back, and writes the list anew.
    pub(crate) fn revoke(&self, file: &str) {
        let pem = format!("{file}.pem");
        openssl(&self.directory, &["ca", "-batch", "-config", "ca.cnf", "-revoke", &pem]);
        self.list();
    }

    /// Makes another CA one below this.
    pub(crate) fn sign(&self, other: &Self) {
        let csr = other.path("ca.csr").display().to_string();
        let new = ["req", "-new", "-key", "ca.key", "-subj", "/CN=Between", "-out", "ca.csr"];
        openssl(&other.directory, &new);
        fs::write(self.path("ca.ext"), "basicConstraints = critical, CA:TRUE\n").unwrap();
        let pem = other.path("ca.pem").display().to_string();
        let ca = ["ca", "-batch", "-notext", "-config", "ca.cnf", "-days", "900"];
        let files = ["-extfile", "ca.ext", "-in", &csr, "-out", &pem];
        openssl(&self.directory, &[&ca[..], &files[..]].concat());
    }

    fn list(&self) {
        let made = ["ca", "-config", "ca.cnf", "-gencrl", "-out", "new.crl"];
        openssl(&self.directory, &made);
        fs::rename(self.path("new.crl"), self.path("revoked.pem")).unwrap();
    }
}
