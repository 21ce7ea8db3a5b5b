//! Values of every sort that travels.

use std::{sync::Arc, time::Duration};

use cheops_agent::wire::{LAST_ATTEMPT, LAST_NUMBER, MAX_DEPTH};
use cheops_core::{
    id::{Author, Key, Kind, OpId, ResourceId, ServiceName, SiteId, Sites},
    matrix::{Concurrent, Config, Entry, Matrix, Take},
    operation::{Action, Attachment, Declaration, HttpBody, HttpRequest, Names, Operation},
    plan::Outcome,
    replica::{Durable, Message, Record, Reply, Sent, Shown, Stretch, Version},
    time::{Millis, Timestamp},
    trust::Seal,
};
use proptest::{collection, option, prelude::*, sample};

fn site() -> impl Strategy<Value = SiteId> {
    prop_oneof!["[a-d]", "[a-zé0-9._-]{1,12}( [a-z]{1,4})?"].prop_map(|name| name.parse().unwrap())
}

fn resource() -> impl Strategy<Value = ResourceId> {
    "[a-z0-9_~][a-z0-9._~-]{0,20}".prop_map(|name| name.parse().unwrap())
}

fn kind() -> impl Strategy<Value = Kind> {
    "[a-zé]{1,6}( [a-z]{1,6})?".prop_map(|name| name.parse().unwrap())
}

fn author() -> impl Strategy<Value = Author> {
    "[a-zA-Z@.]{1,20}".prop_map(|name| name.parse().unwrap())
}

fn key() -> impl Strategy<Value = Key> {
    "[a-z0-9-]{1,36}".prop_map(|name| name.parse().unwrap())
}

fn service() -> impl Strategy<Value = ServiceName> {
    "[a-z]{1,8}".prop_map(|name| name.parse().unwrap())
}

/// Small numbers and large ones, up to a last one.
fn number(first: u64, last: u64) -> impl Strategy<Value = u64> {
    prop_oneof![first..first + 300, first..=last, Just(last)]
}

fn op_id() -> impl Strategy<Value = OpId> {
    (site(), number(1, LAST_NUMBER)).prop_map(|(site, number)| OpId { site, number })
}

fn attempt() -> impl Strategy<Value = u32> {
    prop_oneof![1..4_u32, Just(LAST_ATTEMPT)]
}

fn text() -> impl Strategy<Value = Box<str>> {
    "\\PC{0,40}".prop_map(Into::into)
}

fn attachment() -> impl Strategy<Value = Attachment> {
    (text(), any::<[u8; 32]>(), any::<u64>()).prop_map(|(name, content, length)| Attachment {
        name,
        content,
        length,
    })
}

fn http() -> impl Strategy<Value = HttpRequest> {
    let headers = collection::vec((text(), text()), 0..4).prop_map(Into::into);
    let bytes = collection::vec(any::<u8>(), 0..40);
    let body = prop_oneof![
        Just(HttpBody::None),
        bytes.prop_map(|bytes| HttpBody::Inline(bytes.into())),
        attachment().prop_map(HttpBody::File),
    ];
    let names = prop_oneof![
        2 => Just(Names::Nothing),
        1 => text().prop_map(Names::Makes),
        1 => text().prop_map(Names::Uses),
    ];
    (service(), text(), text(), headers, body, names).prop_map(
        |(service, method, target, headers, body, names)| HttpRequest {
            service,
            method,
            target,
            headers,
            body,
            names,
        },
    )
}

fn action() -> impl Strategy<Value = Action> {
    let leaf = prop_oneof![
        4 => (text(), collection::vec(attachment(), 0..3))
            .prop_map(|(line, files)| Action::Command { line, files: files.into() }),
        1 => http().prop_map(|request| Action::Http(Box::new(request))),
    ];
    let depth = u32::try_from(MAX_DEPTH).unwrap();
    leaf.prop_recursive(depth, 20, 3, |inner| {
        collection::vec(inner, 0..4).prop_map(|steps| Action::Steps(steps.into()))
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let result = sample::select(Take::WORDS.map(|(_, take)| take).to_vec());
    let concurrent = sample::select(Concurrent::WORDS.map(|(_, word)| word).to_vec());
    (kind(), kind(), result, option::of(concurrent))
        .prop_map(|(before, after, result, concurrent)| Entry { before, after, result, concurrent })
}

fn config() -> impl Strategy<Value = Config> {
    let command = || option::of("\\PC{0,20}x");
    let timeout = any::<Duration>().prop_filter("a limit", |timeout| !timeout.is_zero());
    let entries = collection::vec(entry(), 0..6);
    (entries, command(), command(), command(), option::of(timeout), parts()).prop_map(
        |(entries, show, reset, check, timeout, parts)| Config {
            matrix: Matrix::new(entries).unwrap(),
            show,
            reset,
            check,
            timeout,
            parts,
        },
    )
}

/// Some sites, cut into pieces.
fn parts() -> impl Strategy<Value = Vec<Sites>> {
    (collection::btree_set(site(), 0..6), 1..3_usize).prop_map(|(sites, size)| {
        let sites: Vec<_> = sites.into_iter().collect();
        let pieces = sites.chunks(size).map(|piece| Sites::new(piece.to_vec()).unwrap());
        let parts: Vec<Sites> = pieces.collect();
        if parts.len() < 2 { Vec::new() } else { parts }
    })
}

fn declaration() -> impl Strategy<Value = Declaration> {
    (collection::vec(site(), 1..5), config(), version()).prop_map(|(sites, config, base)| {
        Declaration { sites: Sites::new(sites).unwrap(), config: config.into(), base }
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let names = (op_id(), resource(), kind(), author());
    let parents = collection::vec(op_id(), 0..4);
    let extras = (any::<(bool, bool)>(), option::of(key()));
    (names, any::<u64>(), parents, action(), extras, option::of(declaration())).prop_map(
        |(names, at, parents, action, ((reset, keep_going), key), declares)| {
            let (id, resource, kind, author) = names;
            Operation {
                id,
                resource,
                kind,
                author,
                at: Timestamp::from_bits(at),
                parents: parents.into(),
                action,
                reset,
                keep_going,
                key,
                declares: declares.map(Box::new),
            }
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let outcome = sample::select(vec![Outcome::Unknown, Outcome::Ko, Outcome::Ok]);
    let said = (text(), option::of(text()));
    (op_id(), resource(), op_id(), attempt(), outcome, any::<u32>(), any::<u64>(), said).prop_map(
        |(id, resource, op, attempt, outcome, era, took, (output, made))| Reply {
            id,
            resource,
            op,
            attempt,
            outcome,
            era,
            took: Millis(took),
            output,
            made,
        },
    )
}

fn shown() -> impl Strategy<Value = Shown> {
    (op_id(), resource(), op_id(), any::<u64>(), option::of(any::<[u8; 16]>()))
        .prop_map(|(id, resource, op, block, print)| Shown { id, resource, op, block, print })
}

fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        operation().prop_map(|op| Record::Operation(Arc::new(op))),
        reply().prop_map(|reply| Record::Reply(Arc::new(reply))),
        shown().prop_map(|shown| Record::Shown(Arc::new(shown))),
    ]
}

fn seal() -> impl Strategy<Value = Seal> {
    let bytes = collection::vec(any::<u8>(), 0..=Seal::LONGEST);
    bytes.prop_filter_map("within its limit", |bytes| Seal::new(&bytes))
}

fn stretch() -> impl Strategy<Value = Stretch> {
    (option::of(resource()), option::of(resource())).prop_map(|(from, to)| Stretch { from, to })
}

fn version() -> impl Strategy<Value = Version> {
    collection::btree_map(site(), number(0, LAST_NUMBER), 0..5)
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    let versions = || collection::vec((resource(), version()), 0..5);
    let sent = (number(0, LAST_NUMBER), record(), option::of(seal()))
        .prop_map(|(after, record, seal)| Sent { after, record, seal });
    prop_oneof![
        collection::vec((stretch(), any::<u64>()), 0..5).prop_map(Message::Compare),
        (stretch(), versions(), any::<u64>())
            .prop_map(|(stretch, versions, digest)| Message::Have(stretch, versions, digest)),
        versions().prop_map(Message::Want),
        versions().prop_map(Message::Forgotten),
        (resource(), op_id())
            .prop_map(|(resource, number)| Message::Contradicted { resource, number }),
        (resource(), collection::vec(sent, 0..5), any::<bool>())
            .prop_map(|(resource, records, more)| Message::Records { resource, records, more }),
    ]
}

pub(crate) fn durable() -> impl Strategy<Value = Durable> {
    prop_oneof![
        4 => (record(), option::of(seal()))
            .prop_map(|(record, seal)| Durable::Record(record, seal)),
        1 => (resource(), op_id(), attempt(), any::<bool>()).prop_map(
            |(resource, op, attempt, fresh)| Durable::Intent { resource, op, attempt, fresh }
        ),
        1 => resource().prop_map(Durable::Clearing),
        1 => resource().prop_map(Durable::Cleared),
        1 => (resource(), op_id())
            .prop_map(|(resource, number)| Durable::Contradicted { resource, number }),
        1 => resource().prop_map(Durable::Leftover),
        1 => (resource(), version(), op_id(), any::<u64>()).prop_map(
            |(resource, version, by, at)| Durable::Forgotten {
                resource,
                version,
                by,
                at: Timestamp::from_bits(at),
            }
        ),
        1 => (resource(), version())
            .prop_map(|(resource, version)| Durable::Trimmed { resource, version }),
    ]
}
