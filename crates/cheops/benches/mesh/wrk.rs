//! Many small requests, by wrk.

use std::{net::SocketAddr, process::Command, time::Duration};

/// What came of a span of asking.
pub(crate) struct Asked {
    pub(crate) requests: f64,
    pub(crate) per_second: f64,
    pub(crate) median: Duration,
}

/// Whether there is wrk.
pub(crate) fn is_there() -> bool {
    Command::new("wrk").arg("-v").output().is_ok()
}

/// Asks over so many connections for so many seconds.
pub(crate) fn ask(
    address: SocketAddr,
    header: Option<&str>,
    connections: usize,
    seconds: usize,
) -> Asked {
    let (connections, span) = (format!("-c{connections}"), format!("-d{seconds}s"));
    let mut command = Command::new("wrk");
    command.args(["-t1", "--latency", &connections, &span]);
    command.args(header.map(|header| format!("-H{header}")));
    let output = command.arg(format!("http://{address}/v2/images")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("Non-2xx"), "{text}");
    let of = |label: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(label)).unwrap();
        line.trim().to_owned()
    };
    let counted = text.lines().find_map(|line| line.split_once(" requests in ")).unwrap().0;
    Asked {
        requests: counted.trim().parse().unwrap(),
        per_second: of("Requests/sec:").parse().unwrap(),
        median: span_of(&of("50%")),
    }
}

/// A span as wrk writes it: `66.00us`, `1.90ms`.
fn span_of(text: &str) -> Duration {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        _ => 1.0,
    };
    Duration::from_secs_f64(digits.parse::<f64>().unwrap() * unit)
}
