//! Addresses on loopback for programs that a test starts.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// An address that nobody has, with a port that the system gives to nobody by itself: one of those may be taken by a
/// connection of another test before the program is there.
pub(crate) fn unused() -> SocketAddr {
    loop {
        let port = fastrand::u16(10_000..32_000);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr().unwrap();
        }
    }
}
