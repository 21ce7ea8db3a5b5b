//! Tables of what a policy decides.

use std::path::Path;

use super::*;
use crate::config::Config;

const POLICY: &str = r#"
site = "site2"
[[policy.rule]]
name = "no guests"
decision = "deny"
authors = ["guest*"]
[[policy.rule]]
name = "no writing at night"
decision = "deny"
origins = ["night"]
services = ["*"]
methods = ["POST", "PUT", "DELETE"]
[[policy.rule]]
name = "no admin"
decision = "deny"
services = ["image"]
paths = ["/admin/*", "/admin"]
[[policy.rule]]
name = "redis"
decision = "allow"
kinds = ["set", "inc", "@show"]
resources = ["counter-*"]
commands = [
    { program = "/usr/bin/redis-cli", arguments = ["get", "{id}"] },
    { program = "/usr/bin/redis-cli", arguments = ["set", "{id}", "*"] },
]
user = "redis"
environment = { keep = ["PATH"], set = { LANG = "C" } }
limits = { cpu = "10s", memory = 100000000, processes = 20, file_size = 1000, open_files = 64 }
landlock = { read = ["/usr", "lib"], write = ["/var/lib/redis"] }
[[policy.rule]]
name = "deploy"
decision = "allow"
authors = ["ops"]
origins = ["site1"]
commands = [{ program = "kubectl", arguments = ["apply", "-f", "{file}"] }, { program = "echo", arguments = ["..."] }]
[[policy.rule]]
name = "root of all"
decision = "allow"
authors = ["root"]
allow_any_shell_command = true
"#;

fn config(text: &str) -> Config {
    Config::from_toml(text, Path::new("/etc/cheops")).unwrap()
}

fn here(joined: bool) -> Here {
    Here { site: "site2".parse().unwrap(), file: Some("/etc/cheops/site.toml".into()), joined }
}

fn command<'a>(
    who: (&'a str, &'a str),
    kind: Kind<'a>,
    resource: &'a str,
    line: &'a str,
) -> Asked<'a> {
    let (author, origin) = (Some(who.0).filter(|a| !a.is_empty()), Some(who.1));
    let step = Step::Command { line, files: &["pod.yaml", "my file"] };
    Asked { author, origin, kind, resource, share: None, step }
}

/// The rule, and how it runs.
fn told(decided: Result<Permit, Denial>) -> String {
    match decided {
        Err(Denial { rule, .. }) => format!("no: {rule}"),
        Ok(Permit { rule, way, .. }) => match way {
            Way::Shell => format!("{rule}: sh"),
            Way::Request => format!("{rule}: sent"),
            Way::Program { program, arguments } => {
                let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
                format!("{rule}: {program} <{}>", arguments.join("> <"))
            }
        },
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    use Kind::{Check, Operation, Reset, Show};
    let policy = config(POLICY).policy;
    let (ops, guest, root, other) =
        (("ops", "site1"), ("guest7", "site1"), ("root", "site1"), ("x", "site3"));
    let set = Operation("set");
    for (who, kind, resource, line, expected) in [
        (
            other,
            set,
            "counter-1",
            "redis-cli get counter-1",
            "redis: /usr/bin/redis-cli <get> <counter-1>",
        ),
        (other, set, "counter-1", "redis-cli get {id}", "redis: /usr/bin/redis-cli <get> <{id}>"),
        (
            other,
            set,
            "counter-1",
            "/usr/bin/redis-cli get {id}",
            "redis: /usr/bin/redis-cli <get> <{id}>",
        ),
        (
            other,
            set,
            "counter-1",
            "redis-cli set {id} 'a b'",
            "redis: /usr/bin/redis-cli <set> <{id}> <a b>",
        ),
        (
            other,
            set,
            "counter-1",
            "redis-cli set {id} ';reboot'",
            "redis: /usr/bin/redis-cli <set> <{id}> <;reboot>",
        ),
        // Another program of the same name, other arguments, another resource, another kind.
        (other, set, "counter-1", "/tmp/redis-cli get {id}", "no: default"),
        (other, set, "counter-1", "./redis-cli get {id}", "no: default"),
        (other, set, "counter-1", "redis-cli get counter-2", "no: default"),
        (other, set, "counter-1", "redis-cli flushall", "no: default"),
        (other, set, "counter-1", "redis-cli set {id} --eval", "no: default"),
        (other, set, "counter-1", "redis-cli get {id} more", "no: default"),
        (other, set, "counter-1", "redis-cli", "no: default"),
        (other, set, "other", "redis-cli get {id}", "no: default"),
        (other, Operation("del"), "counter-1", "redis-cli get {id}", "no: default"),
        // What only a shell could do.
        (other, set, "counter-1", "redis-cli get {id}; reboot", "no: default"),
        (other, set, "counter-1", "redis-cli get {id} | sh", "no: default"),
        (other, set, "counter-1", "redis-cli get $(reboot)", "no: default"),
        (other, set, "counter-1", "redis-cli get {id}\nreboot", "no: default"),
        (other, set, "counter-1", "redis-cli set {id} `reboot`", "no: default"),
        (other, set, "counter-1", "{id} get {id}", "no: default"),
        (ops, set, "counter-1", "echo a; touch /tmp/x", "no: default"),
        (ops, set, "counter-1", "echo a && b", "no: default"),
        // Commands of a resource have names to them, too, and an operation can't pass for one.
        (other, Show, "counter-1", "redis-cli get {id}", "redis: /usr/bin/redis-cli <get> <{id}>"),
        (guest, Show, "counter-1", "redis-cli get {id}", "no: no guests"),
        (("", "site1"), Show, "counter-1", "redis-cli get {id}", "no: no guests"),
        (other, Reset, "counter-1", "redis-cli get {id}", "no: default"),
        (other, Check, "counter-1", "redis-cli get {id}", "no: default"),
        (other, Operation("@show"), "counter-1", "redis-cli get {id}", "no: default"),
        // Who asks, and where.
        (
            ops,
            set,
            "web",
            "kubectl apply -f {pod.yaml}",
            "deploy: kubectl <apply> <-f> <{pod.yaml}>",
        ),
        (
            ops,
            set,
            "web",
            "kubectl apply -f '{my file}'",
            "deploy: kubectl <apply> <-f> <{my file}>",
        ),
        (ops, set, "web", "kubectl apply -f /etc/passwd", "no: default"),
        (ops, set, "web", "kubectl apply -f {pod.yaml}/../../x", "no: default"),
        (ops, set, "web", "echo", "deploy: echo <>"),
        (ops, set, "web", "echo -n a b", "deploy: echo <-n> <a> <b>"),
        (("ops", "site3"), set, "web", "echo a", "no: default"),
        (("ops2", "site1"), set, "web", "echo a", "no: default"),
        (("", "site1"), set, "web", "echo a", "no: no guests"),
        (root, set, "web", "a; b", "root of all: sh"),
        (guest, set, "counter-1", "redis-cli get {id}", "no: no guests"),
        // A delete without a command of its own does nothing.
        (other, Operation("delete"), "web", "true", "default: true <>"),
        (other, Operation("delete"), "web", "true x", "no: default"),
        (guest, Operation("delete"), "web", "true", "no: no guests"),
    ] {
        let found = told(policy.decide(&command(who, kind, resource, line), &here(true)));
        assert_eq!(found, expected, "{who:?} {kind:?} {resource} {line}");
    }
}

#[test]
fn requests_run_unless_a_rule_denies_them() {
    let policy = config(POLICY).policy;
    for (origin, service, method, target, expected) in [
        ("site1", "image", "GET", "/v2/images", "default: sent"),
        ("site1", "image", "POST", "/v2/images?x=/admin", "default: sent"),
        ("night", "image", "GET", "/v2/images", "default: sent"),
        ("night", "image", "POST", "/v2/images", "no: no writing at night"),
        ("night", "image", "post", "/v2/images", "no: no writing at night"),
        ("site1", "image", "GET", "/admin", "no: no admin"),
        ("site1", "image", "GET", "/admin/x?y", "no: no admin"),
        ("site1", "other", "GET", "/admin/x", "default: sent"),
        // A path that is not what it looks like.
        ("site1", "image", "GET", "/v2/../admin/x", "no: default"),
        ("site1", "image", "GET", "/v2/%2e%2E/admin/x", "no: default"),
        ("site1", "image", "GET", "//admin/x", "no: default"),
        ("site1", "image", "GET", "/%2Fadmin/x", "no: default"),
        ("site1", "image", "GET", "/./admin/x", "no: default"),
        ("site1", "image", "GET", "/%61dmin/x", "no: default"),
        ("site1", "image", "GET", "/%2561dmin/x", "no: default"),
        ("site1", "image", "GET", "/admi%6", "no: default"),
        ("site1", "image", "GET", "/admin%00", "no: default"),
        ("site1", "image", "GET", "/caf%c3%a9%20x", "default: sent"),
        ("site1", "image", "GET", "/admin/caf%C3%A9", "no: no admin"),
        ("site1", "image", "GET", "/a\\..\\admin", "no: default"),
    ] {
        let step = Step::Request { service, method, target };
        let asked = Asked { step, ..command(("x", origin), Kind::Operation("write"), "r", "") };
        assert_eq!(
            told(policy.decide(&asked, &here(true))),
            expected,
            "{origin} {method} {target}"
        );
    }
    let open = Policy::default();
    let step = Step::Request { service: "image", method: "POST", target: "/a/../b" };
    let asked = Asked { step, ..command(("x", "y"), Kind::Operation("write"), "r", "") };
    assert_eq!(told(open.decide(&asked, &here(true))), "default: sent");
}

#[test]
fn a_site_with_others_needs_a_line_and_says_which() {
    let line = |policy: &str, joined| {
        let policy = config(&format!("site = 'site2'\n{policy}")).policy;
        let asked = command(("x", "site1"), Kind::Operation("set"), "r", "a | b");
        policy.decide(&asked, &here(joined))
    };
    let rule = "[[policy.rule]]\nname = 'r'\ndecision = 'allow'\nauthors = ['n']\nallow_any_shell_command = true\n";
    for (policy, joined, expected) in [
        ("", false, "default: sh"),
        ("", true, "no: default"),
        ("[policy]\nlandlock = 'best-effort'", false, "default: sh"),
        ("[policy]\nlandlock = 'best-effort'", true, "no: default"),
        ("[policy]\nallow_any_shell_command = true", false, "allow_any_shell_command: sh"),
        ("[policy]\nallow_any_shell_command = true", true, "allow_any_shell_command: sh"),
        ("[policy]\nallow_any_shell_command = false", false, "no: default"),
        (rule, false, "no: default"),
        (rule, true, "no: default"),
    ] {
        assert_eq!(told(line(policy, joined)), expected, "{policy} {joined}");
    }
    let said = line("", true).unwrap_err().to_string();
    for words in [
        "denied by rule `default`",
        "`site2`",
        "write `allow_any_shell_command = true` under `[policy]` in /etc/cheops/site.toml",
        "restart",
        "docs/policy.md",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let said = line(rule, true).unwrap_err().to_string();
    assert!(said.contains("it needs a shell: `|` at column 3"), "{said}");
}

#[test]
fn a_rule_says_how_its_commands_run() {
    let policy = config(POLICY).policy;
    let asked = command(("x", "site1"), Kind::Operation("set"), "counter-1", "redis-cli get {id}");
    let terms = policy.decide(&asked, &here(true)).unwrap().terms;
    assert_eq!(terms.user.as_deref(), Some("redis"));
    let limits = Limits {
        cpu: Some(10),
        memory: Some(100_000_000),
        processes: Some(20),
        file_size: Some(1_000),
        open_files: Some(64),
    };
    assert_eq!(terms.limits, limits);
    let paths = Paths {
        read: vec!["/usr".into(), "/etc/cheops/lib".into()],
        write: vec!["/var/lib/redis".into()],
    };
    assert_eq!(terms.paths, Some(paths));
}

#[test]
fn what_can_not_be_meant_is_refused_with_its_line_and_what_to_write() {
    let allow = "decision = 'allow'\nallow_any_shell_command = true\n";
    for (rule, expected) in [
        ("decision = 'allow'", "line 2: missing field `name`"),
        ("name = ''\ndecision = 'deny'", "it needs a name of its own"),
        ("name = 'default'\ndecision = 'deny'", "it needs a name of its own"),
        ("name = 'a`b'\ndecision = 'deny'", "it needs a name of its own"),
        ("name = 'r'", "line 3: the rule `r` of the policy: write decision = 'allow' or"),
        ("name = 'r'\ndecision = 'maybe'", "line 4: unknown variant `maybe`"),
        ("name = 'r'\ndecision = 'allow'\ncomands = []", "line 5: unknown field `comands`"),
        ("name = 'r'\ndecision = 'allow'", "it does not say what it allows"),
        ("name = 'r'\ndecision = 'deny'\ncommands = [{ program = 'rm' }]", "a way around it"),
        ("name = 'r'\ndecision = 'deny'\nallow_any_shell_command = true", "a way around it"),
        (&format!("name = 'r'\n{allow}commands = [{{ program = 'rm' }}]"), "are two things"),
        ("name = 'r'\ndecision = 'deny'\nmethods = ['GET']", "go with `services`"),
        (
            "name = 'r'\ndecision = 'deny'\nservices = ['*']\nmethods = ['get']",
            "`get` is no method",
        ),
        ("name = 'r'\ndecision = 'deny'\nservices = ['*']\npaths = ['x']", "begins with `/`"),
        ("name = 'r'\ndecision = 'deny'\nuser = 'x'", "are for commands"),
        ("name = 'r'\ndecision = 'deny'\nkinds = ['@list']", "no command is called `@list`"),
        ("name = 'r'\ndecision = 'allow'\ncommands = [{ program = 'bin/x' }]", "is no program"),
        ("name = 'r'\ndecision = 'allow'\ncommands = [{ program = '' }]", "is no program"),
        ("name = 'r'\ndecision = 'allow'\ncommands = [{ program = '*' }]", "is no program"),
        (
            "name = 'r'\ndecision = 'allow'\ncommands = [{ program = 'x', arguments = ['...', 'a'] }]",
            "comes last",
        ),
        (&format!("name = 'r'\n{allow}limits = {{ cpu = '0s' }}"), "`limits.cpu` must be"),
        (&format!("name = 'r'\n{allow}limits = {{ cpu = 'x' }}"), "`limits.cpu`"),
        (&format!("name = 'r'\n{allow}limits = {{ memory = 1000 }}"), "`limits.memory` must be"),
        (&format!("name = 'r'\n{allow}limits = {{ processes = 0 }}"), "`limits.processes`"),
        (&format!("name = 'r'\n{allow}limits = {{ open_files = 1 }}"), "`limits.open_files`"),
        (&format!("name = 'r'\n{allow}limits = {{ cpus = '1s' }}"), "unknown field `cpus`"),
        (&format!("name = 'r'\n{allow}landlock = {{}}"), "names no path"),
        (&format!("name = 'r'\n{allow}environment = {{ set = {{ 'A=' = 'b' }} }}"), "`A=`"),
        (
            &format!("name = 'r'\n{allow}[[policy.rule]]\nname = 'r'\n{allow}"),
            "line 7: the rule `r` of the policy: it is there twice",
        ),
    ] {
        let text = format!("site = 'a'\n[[policy.rule]]\n{rule}");
        let error = Config::from_toml(&text, Path::new("/")).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
