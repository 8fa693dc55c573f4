//! Names of migration files.

use std::borrow::Cow;

/// Returns the version and the description of a migration from the name of its file, for example 1
/// and `plain names` for `0001_plain_names`. A name without a version has the version 0.
#[must_use]
pub fn parse_migration_name(name: &str) -> (i64, Cow<'static, str>) {
    let (version, description) = name.split_once('_').unwrap_or(("", name));
    (
        version.parse().unwrap_or(0),
        description.replace('_', " ").into(),
    )
}
