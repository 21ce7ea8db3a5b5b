//! Which events a hook tells of.
//!
//! What must stay true: without a word about sites, a hook tells of what happened at its own site, so
//! that hooks at all sites together tell each event once.

pub use cheops_core::pattern::Pattern;

use crate::{
    api::model::HookEvent,
    hooks::event::{Name, SUMMARISED},
};

/// How often a hook tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each event, at each site.
    Each,
    /// Each operation once, when nothing more will come of it, for all sites together.
    Summary,
}

impl Mode {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Each => "each",
            Self::Summary => "summary",
        }
    }
}

/// Which events a hook tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Events by name.
    pub on: Vec<Pattern>,
    /// Only of these resources; of all if there are none.
    pub resources: Vec<Pattern>,
    /// Only of operations of these kinds; of all if there are none.
    pub kinds: Vec<Pattern>,
    /// Only of what happened at these sites; at its own if there are none. For a summary, the site that
    /// received the operation; any if there are none.
    pub sites: Vec<Pattern>,
    /// How often.
    pub mode: Mode,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            on: vec![Pattern::new("*")],
            resources: Vec::new(),
            kinds: Vec::new(),
            sites: Vec::new(),
            mode: Mode::Each,
        }
    }
}

impl Filter {
    /// Whether an event passes. What is about no resource passes where no resource is named, and what is
    /// about no operation where no kind is.
    pub fn passes(&self, event: &HookEvent) -> bool {
        let any = |patterns: &[Pattern], text: &str| patterns.iter().any(|p| p.matches(text));
        let wanted = |patterns: &[Pattern], text: Option<&str>| {
            patterns.is_empty() || text.is_some_and(|text| any(patterns, text))
        };
        let at_home = match self.sites.as_slice() {
            [] => event.summary || event.site == event.told_by,
            sites => any(sites, &event.site),
        };
        event.summary == (self.mode == Mode::Summary)
            && any(&self.on, &event.event)
            && wanted(&self.resources, event.resource.as_deref())
            && wanted(&self.kinds, event.kind.as_deref())
            && at_home
    }

    /// The first name or pattern of `on` that no event of this mode has.
    pub fn vain(&self) -> Option<&str> {
        let names = match self.mode {
            Mode::Each => Name::ALL,
            Mode::Summary => SUMMARISED,
        };
        let vain = |pattern: &&Pattern| !names.iter().any(|name| pattern.matches(name.as_str()));
        self.on.iter().find(vain).map(Pattern::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::tests::sample;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("web", "web", true),
            ("web", "web1", false),
            ("*", "", true),
            ("*", "anything", true),
            ("web-*", "web-", true),
            ("web-*", "web-7", true),
            ("web-*", "a-web-7", false),
            ("*-7", "web-7", true),
            ("*-7", "web-77", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("ab*ba", "aba", false),
            ("**", "x", true),
            ("é*", "été", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), expected, "{pattern} {text}");
        }
    }

    fn event(name: &str) -> HookEvent {
        HookEvent { event: name.into(), resource: Some("web-1".into()), ..sample("1") }
    }

    fn patterns_of(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().copied().map(Pattern::new).collect()
    }

    #[test]
    fn filters() {
        let all = Filter::default;
        let on = |texts: &[&str]| Filter { on: patterns_of(texts), ..Filter::default() };
        let elsewhere = HookEvent { site: "site2".into(), ..event("operation.ran") };
        let lost = HookEvent { resource: None, kind: None, ..event("site.lost") };
        let summary = HookEvent { summary: true, ..elsewhere.clone() };
        let summarises = Filter { mode: Mode::Summary, ..all() };
        for (filter, event, expected) in [
            (all(), event("operation.ran"), true),
            (on(&["operation.*"]), event("operation.ran"), true),
            (on(&["operation.*"]), lost.clone(), false),
            (on(&["operation.failed", "site.lost"]), lost.clone(), true),
            (on(&[]), event("operation.ran"), false),
            (Filter { resources: patterns_of(&["web-*"]), ..all() }, event("operation.ran"), true),
            (Filter { resources: patterns_of(&["db-*"]), ..all() }, event("operation.ran"), false),
            (Filter { resources: patterns_of(&["web-*"]), ..all() }, lost.clone(), false),
            (Filter { kinds: patterns_of(&["set"]), ..all() }, event("operation.ran"), true),
            (Filter { kinds: patterns_of(&["inc"]), ..all() }, event("operation.ran"), false),
            (Filter { kinds: patterns_of(&["set"]), ..all() }, lost, false),
            (all(), elsewhere.clone(), false),
            (Filter { sites: patterns_of(&["site2"]), ..all() }, elsewhere.clone(), true),
            (Filter { sites: patterns_of(&["*"]), ..all() }, elsewhere.clone(), true),
            (Filter { sites: patterns_of(&["site2"]), ..all() }, event("operation.ran"), false),
            (all(), summary.clone(), false),
            (summarises.clone(), summary.clone(), true),
            (summarises.clone(), event("operation.ran"), false),
            (Filter { sites: patterns_of(&["site3"]), ..summarises }, summary, false),
        ] {
            assert_eq!(filter.passes(&event), expected, "{filter:?} {event:?}");
        }
    }

    #[test]
    fn what_no_event_is_called_is_found() {
        for (mode, on, expected) in [
            (Mode::Each, &["*", "operation.ran"][..], None),
            (Mode::Each, &["operation.run"], Some("operation.run")),
            (Mode::Each, &["site.*", "sites.*"], Some("sites.*")),
            (Mode::Summary, &["operation.*"], None),
            (Mode::Summary, &["operation.settled", "site.lost"], Some("site.lost")),
            (Mode::Summary, &["operation.accepted"], Some("operation.accepted")),
        ] {
            let filter = Filter { on: patterns_of(on), mode, ..Filter::default() };
            assert_eq!(filter.vain(), expected, "{mode:?} {on:?}");
        }
    }
}
