//! Compares the dependencies between the crates of the workspace with the tables in
//! `docs/ARCHITECTURE.md`. A new dependency between two crates therefore needs a change of the
//! document.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn repository_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A crate of the workspace.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct CrateDependencies {
    /// Crates of the workspace that this crate depends on.
    own: BTreeSet<String>,
    /// Other crates that this crate depends on.
    external: BTreeSet<String>,
}

/// Returns the dependencies of each crate of the workspace, without the dependencies of its tests.
fn crates_of_workspace() -> BTreeMap<String, CrateDependencies> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(repository_root())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {error}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let name_of = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let workspace_crates: BTreeSet<String> = packages.iter().map(name_of).collect();
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap();
            let (own, external) = dependencies
                .iter()
                .filter(|dependency| dependency["kind"].is_null())
                .map(name_of)
                .partition(|dependency| workspace_crates.contains(dependency));
            (name_of(package), CrateDependencies { own, external })
        })
        .collect()
}

/// A row of a table in `docs/ARCHITECTURE.md`.
#[derive(Debug, PartialEq, Eq)]
struct DocumentedCrate {
    /// Crates in the column "may use".
    may_use: BTreeSet<String>,
    /// External crates in the column "only user of". Empty if the table does not have the column.
    only_user_of: BTreeSet<String>,
}

/// Returns the words in backquotes.
fn quoted_words(cell: &str) -> BTreeSet<String> {
    let words = cell.split('`').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

fn documented_crates(document: &str) -> BTreeMap<String, DocumentedCrate> {
    let section = document
        .split("\n## ")
        .find(|section| section.starts_with("Crates"))
        .expect("docs/ARCHITECTURE.md has a section \"Crates\"");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let name = quoted_words(cells[0]).pop_first().unwrap();
        let documented = DocumentedCrate {
            may_use: quoted_words(cells[2]),
            only_user_of: quoted_words(cells.get(3).copied().unwrap_or_default()),
        };
        (name, documented)
    })
    .collect()
}

/// Returns the differences between the workspace and the document, one line each.
fn find_differences(
    workspace: &BTreeMap<String, CrateDependencies>,
    document: &BTreeMap<String, DocumentedCrate>,
) -> Vec<String> {
    let mut differences = Vec::new();
    for name in workspace
        .keys()
        .filter(|name| !document.contains_key(*name))
    {
        differences.push(format!("{name} is not in the document"));
    }
    for (name, documented) in document {
        let Some(dependencies) = workspace.get(name) else {
            differences.push(format!("{name} is not in the workspace"));
            continue;
        };
        for added in dependencies.own.difference(&documented.may_use) {
            differences.push(format!("{name} uses {added}, which the document forbids"));
        }
        for removed in documented.may_use.difference(&dependencies.own) {
            differences.push(format!(
                "{name} does not use {removed}; correct the document"
            ));
        }
        for external in &documented.only_user_of {
            if !dependencies.external.contains(external) {
                differences.push(format!(
                    "{name} does not use {external}; correct the document"
                ));
            }
            for (other, other_dependencies) in workspace {
                let is_test_crate = matches!(other.as_str(), "test-support" | "store-contract");
                if other != name && !is_test_crate && other_dependencies.external.contains(external)
                {
                    differences.push(format!("{other} uses {external}; only {name} may use it"));
                }
            }
        }
    }
    differences
}

#[test]
fn dependencies_between_crates_are_those_in_the_document() {
    let text = std::fs::read_to_string(repository_root().join("docs/ARCHITECTURE.md")).unwrap();
    let differences = find_differences(&crates_of_workspace(), &documented_crates(&text));
    assert!(
        differences.is_empty(),
        "docs/ARCHITECTURE.md and the Cargo.toml files differ:\n{}",
        differences.join("\n")
    );
}

#[test]
fn added_and_removed_dependencies_are_found() {
    let document = documented_crates(
        "# A\n\n## Crates\n\n\
         | crate | content | may use | only user of |\n|---|---|---|---|\n\
         | `domain` | ids | | |\n\
         | `mqtt` | client | `domain` | `rumqttc` |\n\
         | `api` | REST | `domain` | |\n\n## Next\n",
    );
    assert_eq!(document.len(), 3);
    let dependencies = |own: &[&str], external: &[&str]| CrateDependencies {
        own: own.iter().map(|name| (*name).to_owned()).collect(),
        external: external.iter().map(|name| (*name).to_owned()).collect(),
    };
    let mut workspace = BTreeMap::from([
        ("domain".to_owned(), dependencies(&[], &[])),
        ("mqtt".to_owned(), dependencies(&["domain"], &["rumqttc"])),
        ("api".to_owned(), dependencies(&["domain"], &[])),
    ]);
    assert_eq!(
        find_differences(&workspace, &document),
        Vec::<String>::new()
    );
    workspace.insert("api".to_owned(), dependencies(&["mqtt"], &["rumqttc"]));
    assert_eq!(
        find_differences(&workspace, &document),
        [
            "api uses mqtt, which the document forbids",
            "api does not use domain; correct the document",
            "api uses rumqttc; only mqtt may use it",
        ]
    );
}

/// Returns all Rust files in a directory and its subdirectories.
fn rust_files(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn only_two_files_are_exempt_from_the_ban_on_unsafe() {
    let crates = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    // The text is split, because this file is searched, too.
    let lint_name = concat!("unsafe", "_code");
    let mut files = rust_files(crates);
    files.retain(|file| std::fs::read_to_string(file).unwrap().contains(lint_name));
    files.sort();
    let [random, topic_identity] = &files[..] else {
        panic!("{files:?}");
    };
    assert!(random.ends_with("fault-simulation/src/fixed_random.rs"));
    assert!(topic_identity.ends_with("kafka/src/topic_identity.rs"));
}
