//! A line between two sites that can be cut: a TCP proxy that drops or holds back bytes.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
};

use super::site::address;

const FLOW: u8 = 0;
const LOSE: u8 = 1;
const HOLD: u8 = 2;

/// One direction of a line.
#[derive(Clone, Default)]
pub(crate) struct Way(Arc<AtomicU8>);

impl Way {
    /// Bytes pass.
    pub(crate) fn flow(&self) {
        self.0.store(FLOW, Ordering::Relaxed);
    }

    /// Bytes vanish.
    pub(crate) fn lose(&self) {
        self.0.store(LOSE, Ordering::Relaxed);
    }

    /// Bytes are not even read.
    pub(crate) fn hold(&self) {
        self.0.store(HOLD, Ordering::Relaxed);
    }
}

/// A line to one address.
pub(crate) struct Line {
    pub(crate) address: SocketAddr,
    /// From whoever dials.
    pub(crate) there: Way,
    /// To whoever dials.
    pub(crate) back: Way,
}

impl Line {
    pub(crate) async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(address()).await.unwrap();
        let line = Self {
            address: listener.local_addr().unwrap(),
            there: Way::default(),
            back: Way::default(),
        };
        let (there, back) = (line.there.clone(), line.back.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                tokio::spawn(carry(near_in, far_out, there.clone()));
                tokio::spawn(carry(far_in, near_out, back.clone()));
            }
        });
        line
    }
}

async fn carry(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, way: Way) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        while way.0.load(Ordering::Relaxed) == HOLD {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let count = from.read(&mut bytes).await.unwrap_or(0);
        if count == 0 {
            let _ = to.shutdown().await;
            return;
        }
        if way.0.load(Ordering::Relaxed) != LOSE && to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
