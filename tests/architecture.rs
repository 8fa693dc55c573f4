//! Who may call whom. The table of rooms and the outside crates each may name, held as a test that
//! prints the file and the edge.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every room may import these.
const EVERYWHERE: &[&str] = &["domain", "protocol", "config", "telemetry", "shutdown"];

/// A room and what else it may import.
const ROOMS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("protocol", &[]),
    ("config", &[]),
    ("telemetry", &[]),
    ("shutdown", &[]),
    ("mqtt", &[]),
    ("broker", &[]),
    ("tenant", &[]),
    ("store", &[]),
    ("record", &["tenant", "store"]),
    ("ingest", &["record", "mqtt", "broker"]),
    ("deliver", &["store", "mqtt", "broker"]),
    ("api", &["deliver", "store"]),
    (
        "runtime",
        &[
            "mqtt", "broker", "tenant", "store", "record", "ingest", "deliver", "api",
        ],
    ),
    (
        "cli",
        &[
            "mqtt", "broker", "tenant", "store", "record", "ingest", "deliver", "api", "runtime",
        ],
    ),
];

/// The lowest rooms may not even import each other freely.
const LOWEST: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("protocol", &["domain"]),
    ("config", &[]),
    ("shutdown", &[]),
    ("telemetry", &["config", "domain", "protocol"]),
];

/// Crates that stand for something outside, and the rooms that may name them.
const CRATES: &[(&str, &[&str])] = &[
    ("mqtt5", &["broker"]),
    ("rumqttc", &["mqtt"]),
    ("sqlx", &["store"]),
    ("axum", &["api"]),
    ("tower_http", &["api"]),
    ("clap", &["cli"]),
    ("rcgen", &["cli"]),
    ("rustls", &["broker", "mqtt"]),
    ("tokio_rustls", &["broker"]),
    ("x509_parser", &["broker"]),
    ("metrics_exporter_prometheus", &["telemetry"]),
    ("tracing_subscriber", &["telemetry"]),
    ("toml", &["config", "cli"]),
    ("anyhow", &["cli", "runtime"]),
];

fn sources() -> Vec<(String, PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let inside = path.strip_prefix(&src).unwrap();
                let room = inside.iter().next().unwrap().to_str().unwrap();
                let room = room.trim_end_matches(".rs").to_owned();
                let text = fs::read_to_string(&path).unwrap();
                found.push((room, inside.to_owned(), text));
            }
        }
    }
    assert!(found.len() > 40, "only {} source files found", found.len());
    found
}

/// The text without comments, strings' contents left alone: enough to find paths.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(number, line)| {
        let code = line.split("//").next().unwrap_or_default();
        (!code.trim().is_empty()).then_some((number + 1, code))
    })
}

/// Rooms named by `crate::room` or inside `use crate::{room, …}`.
fn rooms_named(code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let list = rest
            .strip_prefix('{')
            .and_then(|inner| inner.split('}').next())
            .map_or_else(|| vec![rest], |inner| inner.split(',').collect());
        for item in list {
            let name: String = item
                .trim()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            named.insert(name);
        }
    }
    named
}

fn names_crate(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + name.len()..];
        let starts =
            !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '"' | '/'));
        starts && (after.starts_with("::") || after.starts_with("!(") || after.starts_with(';'))
            || code.trim_start().starts_with(&format!("use {name}"))
                && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn every_room_is_in_the_table() {
    let known: BTreeSet<&str> = ROOMS.iter().map(|(room, _)| *room).collect();
    for (room, file, _) in sources() {
        if !matches!(room.as_str(), "main" | "lib") {
            assert!(
                known.contains(room.as_str()),
                "{} is in no known room",
                file.display()
            );
        }
    }
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for (room, file, text) in sources() {
        let Some((_, more)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            continue;
        };
        let lowest = LOWEST.iter().find(|(name, _)| *name == room);
        for (line, code) in code_lines(&text) {
            for named in rooms_named(code) {
                let allowed = named == room
                    || match lowest {
                        Some((_, allowed)) => allowed.contains(&named.as_str()),
                        None => {
                            EVERYWHERE.contains(&named.as_str()) || more.contains(&named.as_str())
                        }
                    };
                if !allowed {
                    wrong.push(format!("src/{}:{line}: {room} → {named}", file.display()));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "edges that the table does not allow:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn an_outside_crate_is_named_only_in_its_room() {
    let mut wrong = Vec::new();
    for (room, file, text) in sources() {
        for (line, code) in code_lines(&text) {
            for (name, rooms) in CRATES {
                if names_crate(code, name) && !rooms.contains(&room.as_str()) {
                    wrong.push(format!(
                        "src/{}:{line}: {room} names {name}",
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "crates named outside their room:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn only_config_reads_the_environment() {
    for (room, file, text) in sources() {
        for (line, code) in code_lines(&text) {
            let reads = code.contains("env::var") || code.contains("env::vars");
            assert!(
                !reads || room == "config",
                "src/{}:{line} reads the environment",
                file.display()
            );
        }
    }
}

#[test]
fn the_checks_themselves_can_fail() {
    assert_eq!(
        rooms_named("use crate::{runtime, telemetry};"),
        BTreeSet::from(["runtime".to_owned(), "telemetry".to_owned()])
    );
    assert_eq!(
        rooms_named("let x: crate::store::Known;"),
        BTreeSet::from(["store".to_owned()])
    );
    assert!(names_crate("use sqlx::Row as _;", "sqlx"));
    assert!(names_crate("    sqlx::query(SQL)", "sqlx"));
    assert!(names_crate("x: Result<(), sqlx::Error>", "sqlx"));
    assert!(!names_crate("let toml_path = 3;", "toml"));
    assert!(!names_crate("use crate::telemetry::metrics;", "metrics"));
}
