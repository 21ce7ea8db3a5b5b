//! What is told of a resource at a glance is what a walk over all that is known of it tells.

use super::Held;

pub fn check(held: &Held<'_>) {
    for (_, site, resource) in held {
        let what = format!("{} at {site}", resource.id());
        assert!(resource.is_up_to_date(), "{what}");
        assert_eq!(resource.summary(), resource.summary_by_walking(), "{what}");
    }
}
