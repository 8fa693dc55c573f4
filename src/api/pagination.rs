//! Pages: `offset` and `limit` in, `meta`, `links` and `data` out.

use std::num::IntErrorKind;

use axum::http::{StatusCode, Uri};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;

const DEFAULT_LIMIT: u64 = 1000;
/// A larger limit is taken as this one: a page is bounded, and the links lead through the rest.
const MAX_LIMIT: u64 = 10_000;

/// The page that a caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// How many to leave out.
    #[param(required = false, default = 0, format = "uint64")]
    pub offset: u64,
    /// How many to list at most. More than 10,000 is taken as 10,000.
    #[param(required = false, default = 1000, format = "uint64")]
    pub limit: u64,
}

impl Page {
    /// Reads `offset` and `limit` from the query. An empty one is the default. What cannot be read is
    /// an error with this title: the generations differ.
    pub fn read(uri: &Uri, title: &'static str) -> Result<Self, ApiError> {
        let query = query(uri);
        let number = |name: &str, default| match last(&query, name) {
            None | Some("") => Ok(default),
            Some(text) => match text.parse::<u64>() {
                // A number all the same: past every end, above every maximum.
                Err(error) if *error.kind() == IntErrorKind::PosOverflow => Ok(u64::MAX),
                read => read.map_err(|_| {
                    ApiError::new(
                        StatusCode::BAD_REQUEST,
                        title,
                        format!("{name} must be a number that is not negative"),
                    )
                }),
            },
        };
        Ok(Self {
            offset: number("offset", 0)?,
            limit: number("limit", DEFAULT_LIMIT)?.min(MAX_LIMIT),
        })
    }
}

/// A page as it is answered.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Paginated<T> {
    meta: Meta,
    links: Links,
    data: Vec<T>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Meta {
    /// How many there are in all; not counted where pages follow a cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    count: Option<u64>,
    /// Where the next page begins; none after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cursor: Option<String>,
}

/// Paths with their query, without a host. None if there is nothing to list.
#[derive(Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
struct Links {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    first: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    prev: Option<String>,
}

impl<T> Paginated<T> {
    pub fn new(uri: &Uri, page: Page, count: u64, data: Vec<T>) -> Self {
        Self {
            meta: Meta {
                count: Some(count),
                cursor: None,
            },
            links: links(uri, page, count),
            data,
        }
    }

    /// A page after a cursor, and the cursor of the next page.
    pub fn after(uri: &Uri, limit: u64, next: Option<String>, data: Vec<T>) -> Self {
        let limit = limit.to_string();
        let to = |cursor: &str| with(uri, &[("cursor", cursor), ("limit", &limit)], &["offset"]);
        Self {
            links: Links {
                first: Some(to("")),
                next: next.as_deref().map(to),
                ..Links::default()
            },
            meta: Meta {
                count: None,
                cursor: next,
            },
            data,
        }
    }
}

fn links(uri: &Uri, page: Page, count: u64) -> Links {
    if count == 0 {
        return Links::default();
    }
    let Page { offset, limit } = page;
    let to = |offset: u64| Some(link(uri, offset, limit));
    let last = (count - 1)
        .checked_div(limit)
        .map_or(0, |full| full * limit);
    Links {
        first: to(0),
        last: to(last),
        next: (limit > 0 && offset.saturating_add(limit) < count)
            .then(|| to(offset + limit))
            .flatten(),
        prev: (limit > 0 && offset > 0)
            .then(|| to(offset.saturating_sub(limit)))
            .flatten(),
    }
}

fn link(uri: &Uri, offset: u64, limit: u64) -> String {
    let (offset, limit) = (offset.to_string(), limit.to_string());
    with(uri, &[("offset", &offset), ("limit", &limit)], &[])
}

/// The request's path and query, with these parameters set and those left out.
fn with(uri: &Uri, set: &[(&str, &str)], without: &[&str]) -> String {
    let mut query = query(uri);
    query.retain(|(name, _)| {
        !without.contains(&name.as_str()) && !set.iter().any(|(other, _)| other == name)
    });
    let set = set
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    query.extend(set);
    // In one order, whatever the caller's was; what is repeated stays as it came.
    query.sort_by(|a, b| a.0.cmp(&b.0));
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(query)
        .finish();
    format!("{}?{query}", uri.path())
}

/// The parameters of a request, in their order.
pub(super) fn query(uri: &Uri) -> Vec<(String, String)> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .into_owned()
        .collect()
}

/// The last value that a parameter is given.
pub(super) fn last<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut given = query.iter().rev();
    let found = given.find(|(given, _)| given == name);
    found.map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(query: &str) -> Uri {
        format!("/api/v2/connections{query}").parse().unwrap()
    }

    fn at(offset: u64, limit: u64) -> String {
        format!("/api/v2/connections?limit={limit}&offset={offset}")
    }

    #[test]
    fn a_page_has_defaults_and_a_maximum() {
        let read = |query| Page::read(&uri(query), "").unwrap();
        let page = |offset, limit| Page { offset, limit };
        assert_eq!(read(""), page(0, 1000));
        assert_eq!(read("?offset=&limit="), page(0, 1000));
        assert_eq!(read("?offset=5&limit=0"), page(5, 0));
        assert_eq!(read("?limit=99999999"), page(0, 10_000));
        let huge = read("?offset=18446744073709551616&limit=18446744073709551616");
        assert_eq!(huge, page(u64::MAX, 10_000));
        for bad in ["?offset=-1", "?limit=x", "?limit=1.5"] {
            assert!(Page::read(&uri(bad), "").is_err(), "{bad}");
        }
    }

    #[test]
    fn links_lead_to_the_first_last_next_and_previous_page() {
        let page = Page {
            offset: 2,
            limit: 2,
        };
        let links = links(&uri("?limit=2&offset=2"), page, 7);
        assert_eq!(links.first, Some(at(0, 2)));
        assert_eq!(links.prev, Some(at(0, 2)));
        assert_eq!(links.next, Some(at(4, 2)));
        assert_eq!(links.last, Some(at(6, 2)));
    }

    #[test]
    fn there_is_nothing_before_the_first_nor_after_the_last_page() {
        let links_of = |offset, limit, count| links(&uri(""), Page { offset, limit }, count);
        assert_eq!(links_of(0, 2, 7).prev, None);
        assert_eq!(links_of(6, 2, 7).next, None);
        assert_eq!(links_of(4, 2, 6).next, None);
        assert_eq!(links_of(1, 2, 7).prev, Some(at(0, 2)));
        assert_eq!(links_of(0, 10, 0), Links::default());
        let none = links_of(0, 0, 3);
        assert_eq!((none.next, none.prev), (None, None));
    }

    #[test]
    fn links_keep_the_other_parameters_with_their_repetitions() {
        let uri = uri("?tag=b:2&offset=9&tag=a:1&limit=5");
        assert_eq!(
            link(&uri, 3, 7),
            "/api/v2/connections?limit=7&offset=3&tag=b%3A2&tag=a%3A1"
        );
        let page = Paginated::<()>::after(&uri, 7, Some("x".into()), vec![]);
        let next = "/api/v2/connections?cursor=x&limit=7&tag=b%3A2&tag=a%3A1";
        assert_eq!(page.links.next.as_deref(), Some(next));
        assert_eq!(
            Paginated::<()>::after(&uri, 7, None, vec![]).links.next,
            None
        );
    }
}
