//! The OpenAPI document, and the page to read and try it.

use std::collections::BTreeSet;

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::{OK, answered};
use crate::each_deployment;
use crate::support::Deployment;

each_deployment!(
    the_document_is_served_without_credentials_and_all_that_it_lists_is_there,
    the_page_is_served_without_credentials_and_refers_to_nothing_outside,
);

/// What callers have known the longest.
const KNOWN: [(&str, &str); 12] = [
    ("get", "/v1/connection"),
    ("get", "/v1/connection/{account}"),
    ("post", "/v1/connection/disconnect"),
    ("post", "/v1/connection/ping"),
    ("post", "/v1/connection/reconnect"),
    ("post", "/v1/connection/status"),
    ("post", "/v1/connection_status"),
    ("post", "/v1/message"),
    ("get", "/v2/connections"),
    ("post", "/v2/connections/status"),
    ("post", "/v2/connections/{client_id}/message"),
    ("get", "/v2/connections/{client_id}/status"),
];

async fn the_document_is_served_without_credentials_and_all_that_it_lists_is_there(
    subject: Deployment,
) {
    let (status, document) = answered(subject.bare("GET", "/openapi.json")).await;
    assert_eq!(status, OK);
    assert_eq!(document["servers"][0]["url"], "/api/cloud-connector");
    let listed = operations(&document);
    for (method, path) in KNOWN {
        let known = (method.to_owned(), path.to_owned());
        assert!(listed.contains(&known), "{method} {path}");
    }
    for (method, path) in &listed {
        let filled = path.replace("{account}", "1").replace("{client_id}", "x");
        let request = subject.bare(&method.to_uppercase(), &filled);
        // It is there, and asks who is calling.
        let status = request.send().await.unwrap().status();
        assert_eq!(status, 401, "{method} {path}");
    }
}

fn operations(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys();
        methods.map(|method| (method.clone(), path.clone()))
    });
    operations.collect()
}

async fn the_page_is_served_without_credentials_and_refers_to_nothing_outside(subject: Deployment) {
    let mut waiting = vec!["docs".to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(file) = waiting.pop() {
        if !seen.insert(file.clone()) {
            continue;
        }
        let answer = subject.bare("GET", &format!("/{file}")).send().await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200, "{file}");
        assert_is_confined(&file, answer.headers());
        let text = answer.text().await.unwrap();
        // The name of a vocabulary, not a place to fetch from.
        let fetched = text.replace("http://www.w3.org/2000/svg", "");
        for outward in [
            "http:", "https:", "\"//", "'//", " url(", ":url(", "@import",
        ] {
            assert!(!fetched.contains(outward), "{file} has {outward}");
        }
        if file != "openapi.json" {
            waiting.extend(named_in(&text));
        }
    }
    for file in [
        "docs/docs.css",
        "docs/docs.js",
        "docs/try.js",
        "openapi.json",
    ] {
        assert!(seen.contains(file), "{seen:?}");
    }
}

/// The browser may take it only for what it is, and fetch from nowhere else.
fn assert_is_confined(file: &str, headers: &HeaderMap) {
    let ending = file.rsplit_once('.').map_or("", |(_, ending)| ending);
    let kind = match ending {
        "" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "json" => "application/json; charset=UTF-8",
        "svg" => "image/svg+xml",
        other => panic!("{other}"),
    };
    assert_eq!(headers["content-type"], kind, "{file}");
    assert_eq!(headers["x-content-type-options"], "nosniff", "{file}");
    let policy = headers["content-security-policy"].to_str().unwrap();
    let mut rules = policy.split("; ");
    assert_eq!(rules.next(), Some("default-src 'none'"), "{file}");
    for rule in rules.filter(|rule| rule.contains("-src ")) {
        assert!(rule.ends_with("-src 'self'"), "{file}: {rule}");
    }
}

/// The files that a page or a script names.
fn named_in(text: &str) -> Vec<String> {
    let after = |mark: &'static str, folder: &'static str| {
        let rests = text.split(mark).skip(1);
        let names = rests.map(|rest| rest.split('"').next().unwrap());
        let files = names.filter(|name| !name.starts_with('#'));
        files.map(move |name| format!("{folder}{name}"))
    };
    after("href=\"", "")
        .chain(after("src=\"", ""))
        .chain(after("from \"./", "docs/"))
        .collect()
}
