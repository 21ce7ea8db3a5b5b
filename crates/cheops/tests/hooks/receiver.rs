//! A receiver of web hooks that does what a test wants.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use cheops_agent::api::model::HookEvent;

/// What it does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Answers with a status.
    Answer(u16),
    /// Takes it, and never answers.
    Hang,
    /// Sends it elsewhere, where another would take it.
    Redirect,
}

/// A request that was answered well, or not.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) event: HookEvent,
    pub(crate) at: Instant,
    /// It was answered with success.
    pub(crate) taken: bool,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    mood: Arc<Mutex<Mood>>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mood = Arc::new(Mutex::new(Mood::Answer(204)));
        let received = Arc::new(Mutex::new(Vec::new()));
        let shared = (mood.clone(), received.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mood, received) = shared.clone();
                thread::spawn(move || serve(stream, &mood, &received));
            }
        });
        Self { address, mood, received }
    }

    pub(crate) fn feel(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// The events that were taken, without doubles, in order.
    pub(crate) fn told(&self) -> Vec<HookEvent> {
        let mut told: Vec<HookEvent> = Vec::new();
        for received in self.received().into_iter().filter(|received| received.taken) {
            if told.iter().all(|event| event.id != received.event.id) {
                told.push(received.event);
            }
        }
        told
    }
}

fn serve(stream: TcpStream, mood: &Mutex<Mood>, all: &Mutex<Vec<Received>>) {
    let mut reader = BufReader::new(stream);
    let mut headers = Vec::new();
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    loop {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().unwrap())];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let mood = *mood.lock().unwrap();
    let event = serde_json::from_slice(&body).unwrap();
    let taken = matches!(mood, Mood::Answer(200..300));
    all.lock().unwrap().push(Received { headers, body, event, at: Instant::now(), taken });
    let mut stream = reader.into_inner();
    match mood {
        Mood::Answer(status) => {
            let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        }
        Mood::Redirect => {
            let there = stream.local_addr().unwrap();
            let _ = write!(
                stream,
                "HTTP/1.1 307 X\r\nLocation: http://{there}/elsewhere\r\nContent-Length: 0\r\n\r\n"
            );
        }
        Mood::Hang => {
            // Until the other end has had enough.
            let _ = stream.set_read_timeout(Some(Duration::from_mins(5)));
            let _ = stream.read(&mut [0]);
        }
    }
}
