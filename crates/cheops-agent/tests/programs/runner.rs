//! What the tests of running start as processes of their own: a supervisor, and a whole agent that
//! can be killed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]
#![allow(missing_docs, reason = "it is a part of the tests")]

use std::{net::SocketAddr, path::Path, process::ExitCode};

use cheops_agent::{config::Service, run::supervise};
use cheops_core::{
    operation::{Action, HttpBody, HttpRequest, Names},
    plan::Outcome,
};

#[path = "../support/site.rs"]
mod site;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let word = |at: usize| arguments[at].to_str().unwrap();
    match word(1) {
        "supervise" => supervise(Path::new(&arguments[2])),
        "confine" => cheops_agent::run::confine::confine(word(2), &arguments[3], &arguments[4..]),
        "agent" => {
            let (resources, operations) = (word(3).parse().unwrap(), word(4).parse().unwrap());
            run(agent(Path::new(&arguments[2]), resources, operations))
        }
        "requests" => {
            let address = word(3).parse().unwrap();
            let (resources, operations) = (word(4).parse().unwrap(), word(5).parse().unwrap());
            run(requests(Path::new(&arguments[2]), address, resources, operations))
        }
        other => panic!("{other}?"),
    }
}

fn run(work: impl Future<Output = ()>) -> ExitCode {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work);
    ExitCode::SUCCESS
}

/// An agent that asks itself for so many operations on each of so many resources, one after the
/// other, and ends when all were answered. Started again, it goes on.
async fn agent(directory: &Path, resources: u32, operations: u32) {
    std::fs::create_dir_all(directory).unwrap();
    let mut plan = site::Plan::new(directory, "/proc/self/exe");
    plan.log = site::Disk::open(&directory.join("log"));
    plan.config.runs.parallel = 3;
    let site = std::sync::Arc::new(plan.start());
    let tasks: Vec<_> = (0..resources)
        .map(|resource| {
            let site = site.clone();
            tokio::spawn(async move {
                for n in 0..operations {
                    // Two at once, or a command that lasts longer than the agent, must show.
                    let line = format!(
                        "mkdir busy-{{id}} || echo overlap >> wrong; \
                         {} echo {n} >> effects-{{id}}; rmdir busy-{{id}}; echo did {n}",
                        if n % 4 == 0 { "sleep 0.03;" } else { "" },
                    );
                    let id = format!("r{resource}");
                    let mut submission = site.request(&id, Action::command(line), &[]);
                    submission.key = Some(format!("{n}").parse().unwrap());
                    let reply = site.submit(submission).await;
                    assert_eq!(
                        (reply.outcome, &*reply.output),
                        (Outcome::Ok, &*format!("did {n}\n"))
                    );
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// The same, with requests to an instance instead of commands.
async fn requests(directory: &Path, address: SocketAddr, resources: u32, operations: u32) {
    std::fs::create_dir_all(directory).unwrap();
    let mut plan = site::Plan::new(directory, "/proc/self/exe");
    plan.log = site::Disk::open(&directory.join("log"));
    let image = Service::new("image".parse().unwrap(), address, Some(address));
    plan.config.mesh.services = [(image.name.clone(), image)].into();
    let site = std::sync::Arc::new(plan.start());
    let tasks: Vec<_> = (0..resources)
        .map(|resource| {
            let site = site.clone();
            tokio::spawn(async move {
                for n in 0..operations {
                    let id = format!("r{resource}");
                    let request = HttpRequest {
                        service: "image".parse().unwrap(),
                        method: "POST".into(),
                        target: format!("/{id}").into(),
                        headers: Box::default(),
                        body: HttpBody::Inline(n.to_string().into_bytes().into()),
                        names: Names::Makes("m".into()),
                    };
                    let action = Action::Http(Box::new(request));
                    let mut submission = site.request(&id, action, &[]);
                    submission.key = Some(format!("{n}").parse().unwrap());
                    let reply = site.submit(submission).await;
                    let made = format!("{id}-{n}");
                    assert_eq!((reply.outcome, reply.made.as_deref()), (Outcome::Ok, Some(&*made)));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
