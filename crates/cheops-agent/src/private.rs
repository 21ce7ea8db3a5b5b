//! The data directory is the agent's own: nobody else on the machine reads what is in it.
//!
//! What must stay true: others have no right to the directory, whoever made it and however; where commands
//! run as another user, which they do below it, others may pass through, and to nothing but the runs. What
//! its group may is left as it is: it may be there for backups.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::Path,
};

/// What holds something of others, beside the runs.
const PRIVATE: [&str; 4] = ["audit", "files", "hooks", "store"];

/// Makes the data directory, or takes away what others may with it. Others may `pass` through it where
/// commands run as another user.
pub(crate) fn keep(data: &Path, pass: bool) -> io::Result<()> {
    make(data, if pass { 0o711 } else { 0o700 })?;
    if pass {
        PRIVATE.iter().try_for_each(|name| make(&data.join(name), 0o700))?;
    }
    Ok(())
}

/// Makes a directory with these rights, or takes away from one that is there what these don't give to others.
fn make(directory: &Path, rights: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(rights).create(directory)?;
    let mode = fs::metadata(directory)?.mode() & 0o7777;
    let kept = mode & 0o7770 | rights & 0o011;
    if kept != mode
        && let Err(error) = fs::set_permissions(directory, Permissions::from_mode(kept))
    {
        let directory = directory.display();
        tracing::warn!("{directory}: others can't be kept out: {error}; see to it yourself");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn others_are_kept_out() {
        for (before, pass, expected) in [
            (None, false, 0o700),
            (None, true, 0o711),
            (Some(0o755), false, 0o750),
            (Some(0o700), false, 0o700),
            (Some(0o2770), false, 0o2770),
            (Some(0o777), true, 0o771),
            // A rule with a user was taken out again.
            (Some(0o711), false, 0o710),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let data = directory.path().join("a/data");
            if let Some(before) = before {
                fs::create_dir_all(data.join("audit")).unwrap();
                fs::set_permissions(&data, Permissions::from_mode(before)).unwrap();
            }
            for _ in 0..2 {
                keep(&data, pass).unwrap();
                assert_eq!(mode(&data), expected, "{before:?} {pass}");
                if pass {
                    assert_eq!(mode(&data.join("audit")) & 0o007, 0, "{before:?}");
                    assert_eq!(mode(&data.join("store")) & 0o007, 0, "{before:?}");
                }
            }
        }
    }
}
