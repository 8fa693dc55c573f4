//! Who may call whom. The table of rooms and the outside crates each may name, held as a test that
//! prints the file and the edge.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every room may import these.
const EVERYWHERE: &[&str] = &[
    "domain",
    "protocol",
    "config",
    "telemetry",
    "shutdown",
    "rate_limit",
];

/// A room and what else it may import.
const ROOMS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("protocol", &[]),
    ("config", &[]),
    ("telemetry", &[]),
    ("shutdown", &[]),
    ("rate_limit", &[]),
    ("mqtt", &[]),
    ("tls_server", &[]),
    ("broker", &["tls_server"]),
    ("http_client", &[]),
    ("tenant", &["http_client"]),
    ("store", &[]),
    ("kafka", &[]),
    ("integrations", &["kafka", "http_client"]),
    ("record", &["tenant", "store", "integrations"]),
    ("ingest", &["record", "mqtt", "broker", "kafka"]),
    ("jobs", &["store", "tenant", "integrations", "delivery"]),
    ("delivery", &["mqtt", "broker"]),
    ("api", &["delivery", "store", "tenant", "tls_server"]),
    (
        "runtime",
        &[
            "mqtt",
            "broker",
            "tenant",
            "store",
            "record",
            "ingest",
            "delivery",
            "api",
            "kafka",
            "jobs",
            "integrations",
            "tls_server",
        ],
    ),
    (
        "cli",
        &[
            "mqtt",
            "broker",
            "tenant",
            "store",
            "record",
            "ingest",
            "delivery",
            "api",
            "kafka",
            "jobs",
            "integrations",
            "runtime",
            "tls_server",
        ],
    ),
];

/// The lowest rooms may not even import each other freely.
const LOWEST: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("protocol", &["domain"]),
    ("config", &[]),
    ("shutdown", &[]),
    ("rate_limit", &[]),
    ("telemetry", &["config", "domain", "protocol"]),
];

/// Crates that stand for something outside, and the rooms that may name them.
const CRATES: &[(&str, &[&str])] = &[
    ("mqtt5", &["broker"]),
    ("rumqttc", &["mqtt"]),
    ("rdkafka", &["kafka"]),
    ("hyper", &["api"]),
    ("hyper_util", &["api"]),
    ("sqlx", &["store"]),
    ("axum", &["api"]),
    ("utoipa", &["api"]),
    ("utoipa_axum", &["api"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("rcgen", &["cli"]),
    (
        "rustls",
        &["tls_server", "broker", "api", "mqtt", "http_client"],
    ),
    ("tokio_rustls", &["tls_server", "broker"]),
    ("x509_parser", &["tls_server", "broker"]),
    ("metrics_exporter_prometheus", &["telemetry"]),
    ("tracing_subscriber", &["telemetry"]),
    ("toml", &["config", "cli"]),
    ("reqwest", &["http_client", "tenant", "integrations"]),
    ("moka", &["tenant", "integrations"]),
    ("anyhow", &["cli", "runtime"]),
];

/// Crates that a room's `tests.rs` may name anyway: services that are not ours are faked with them.
const IN_TESTS: &[&str] = &["axum"];

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
                let text = code(&fs::read_to_string(&path).unwrap());
                found.push((room, inside.to_owned(), text));
            }
        }
    }
    assert!(found.len() > 40, "only {} source files found", found.len());
    found
}

/// The text without comments, lines kept: enough to find paths.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}

/// Rooms named by `crate::room` or inside `use crate::{room, …}`, over several lines, too; each with
/// its line.
fn rooms_named(code: &str) -> BTreeSet<(usize, String)> {
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let line = code[..at].matches('\n').count() + 1;
        let rest = &code[at + "crate::".len()..];
        for item in first_names(rest) {
            named.insert((line, item));
        }
    }
    named
}

/// The first name of a path, or of every path in a list of them.
fn first_names(rest: &str) -> Vec<String> {
    let name = |text: &str| {
        let text = text.trim_start();
        let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let Some(list) = rest.strip_prefix('{') else {
        return vec![name(rest)];
    };
    let mut names = vec![name(list)];
    let mut depth = 1;
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(name(&list[at + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names.retain(|name| !name.is_empty());
    names
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
        for (line, named) in rooms_named(&text) {
            let allowed = named == room
                || match lowest {
                    Some((_, allowed)) => allowed.contains(&named.as_str()),
                    None => EVERYWHERE.contains(&named.as_str()) || more.contains(&named.as_str()),
                };
            if !allowed {
                wrong.push(format!("src/{}:{line}: {room} → {named}", file.display()));
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
        let is_test = file.ends_with("tests.rs");
        for (line, code) in code_lines(&text) {
            for (name, rooms) in CRATES {
                if is_test && IN_TESTS.contains(name) {
                    continue;
                }
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
    let named = |code: &str| {
        let rooms = rooms_named(code).into_iter().map(|(_, room)| room);
        rooms.collect::<Vec<_>>()
    };
    assert_eq!(
        named("use crate::{\n    runtime::{self, stop},\n    telemetry,\n};"),
        ["runtime", "telemetry"]
    );
    assert_eq!(named("let x: crate::store::Known;"), ["store"]);
    assert!(names_crate("use sqlx::Row as _;", "sqlx"));
    assert!(names_crate("    sqlx::query(SQL)", "sqlx"));
    assert!(names_crate("x: Result<(), sqlx::Error>", "sqlx"));
    assert!(!names_crate("let toml_path = 3;", "toml"));
    assert!(!names_crate("use crate::telemetry::metrics;", "metrics"));
}
