//! Checks of the source code of a backend: no statement and no migration can be missing in its
//! list.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Text that runs SQL without a `Statement` or a `Query`. Only the module `driver` may contain it.
const DIRECT_SQL: [&str; 4] = [
    "sqlx::query",
    "sqlx::raw_sql",
    "QueryBuilder",
    "Executor as _",
];

/// Checks that every statement that a backend can run is in `statements`.
///
/// - Only the module `driver` runs SQL with sqlx directly. It accepts only a `Statement` or a
///   `Query`.
/// - Only the macro `statements!` creates a `Statement`. The macro adds the statement to a list.
/// - A function that creates a `Query` whose text depends on conditions has examples in
///   `statements`.
pub fn check_that_every_statement_is_listed(crate_dir: &str, statements: &[(&str, String)]) {
    let listed_names: BTreeSet<&str> = statements.iter().map(|(name, _)| *name).collect();
    let shared_code = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/src/sql");
    let mut files = rust_files(&shared_code);
    files.extend(rust_files(&Path::new(crate_dir).join("src")));
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let file_name = file.file_name().unwrap().to_str().unwrap();
        for direct_sql in DIRECT_SQL {
            let is_allowed = file_name == "driver.rs" || !text.contains(direct_sql);
            assert!(is_allowed, "{} contains {direct_sql}", file.display());
        }
        let creates_statement = text.contains("Statement::in_list(");
        let is_list_of_statements = ["query.rs", "statements.rs"].contains(&file_name);
        assert!(
            !creates_statement || is_list_of_statements,
            "{} creates a statement outside of a list",
            file.display()
        );
        for function in functions_with("= Query::dynamic(", &text)
            .chain(functions_with("    Query::dynamic(", &text))
        {
            assert!(
                listed_names.contains(function),
                "{} of {} has no example in the list of statements",
                function,
                file.display()
            );
        }
    }
}

/// Checks that the module `migrations` contains every file in the folder `migrations`.
pub fn check_that_every_migration_is_listed(crate_dir: &str) {
    let list = fs::read_to_string(Path::new(crate_dir).join("src/migrations.rs")).unwrap();
    for entry in fs::read_dir(Path::new(crate_dir).join("migrations")).unwrap() {
        let file_name = entry.unwrap().file_name().into_string().unwrap();
        let name = file_name.strip_suffix(".sql").unwrap();
        for text in [
            format!("\"{name}\""),
            format!("\"../migrations/{file_name}\""),
        ] {
            assert!(list.contains(&text), "{text} is missing in migrations.rs");
        }
    }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.collect()
}

/// Returns the names of the functions that contain `pattern`.
fn functions_with<'a>(pattern: &'a str, text: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(pattern).map(|(position, _)| {
        let function = text[..position].rsplit("fn ").next().unwrap();
        function.split(['(', '<']).next().unwrap()
    })
}

#[cfg(test)]
mod tests {
    use super::functions_with;

    #[test]
    fn functions_with_returns_the_name_of_the_enclosing_function() {
        let text =
            "fn first() { let x = 1; }\npub fn second<'a>() { let q = Query::dynamic(\"\"); }";
        let names: Vec<&str> = functions_with("= Query::dynamic(", text).collect();
        assert_eq!(names, ["second"]);
    }
}
