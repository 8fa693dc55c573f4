//! Pagination of lists: the query parameters `offset` and `limit`, and the response fields `meta`,
//! `links` and `data`.

use std::num::IntErrorKind;

use axum::http::{StatusCode, Uri};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;

pub(super) const DEFAULT_PAGE_SIZE: u64 = 1000;
/// Maximum number of entries per page. Larger values of `limit` are reduced to this number. The
/// caller requests further entries with the link `next` in the response.
const MAX_PAGE_SIZE: u64 = 10_000;

/// The query parameters `offset` and `limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PageParams {
    /// Number of entries to skip.
    #[param(required = false, default = 0, format = "uint64")]
    pub offset: u64,
    /// Maximum number of entries to return. Values above 10,000 are reduced to 10,000. A page can
    /// have fewer entries although more follow, because its size in bytes is limited. The link
    /// `next` returns the following entries.
    #[param(required = false, default = 1000, format = "uint64")]
    pub limit: u64,
}

impl PageParams {
    /// Parses `offset` and `limit`. If a parameter is empty or missing, uses its default value.
    ///
    /// `error_title` is the title of the 400 error for an invalid number. v1 and v2 use different
    /// titles.
    pub fn from_query(uri: &Uri, error_title: &'static str) -> Result<Self, ApiError> {
        let params = query_params(uri);
        let limit = number_param(&params, "limit", DEFAULT_PAGE_SIZE, error_title)?;
        Ok(Self {
            offset: number_param(&params, "offset", 0, error_title)?,
            limit: limit.min(MAX_PAGE_SIZE),
        })
    }
}

/// Parses a query parameter that is a number. If the parameter is empty or missing, returns `default`.
/// `error_title` is the title of the 400 error for an invalid number.
pub(super) fn number_param(
    params: &[(String, String)],
    name: &str,
    default: u64,
    error_title: &'static str,
) -> Result<u64, ApiError> {
    match last_param_value(params, name) {
        None | Some("") => Ok(default),
        Some(text) => match text.parse::<u64>() {
            // A number above u64::MAX is valid and is replaced with u64::MAX. The result is the same,
            // because no list is that long.
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => Ok(u64::MAX),
            parsed => parsed.map_err(|_| {
                ApiError::new(
                    StatusCode::BAD_REQUEST,
                    error_title,
                    format!("{name} must be a non-negative integer"),
                )
            }),
        },
    }
}

/// Response body with one page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Paginated<T> {
    meta: Meta,
    links: Links,
    data: Vec<T>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Meta {
    /// Total number of entries in the list. Absent if the page was requested with a cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    count: Option<u64>,
    /// True if more entries match the filters than `count`. Otherwise absent. Matches are counted up to
    /// 10,000. The link `last` is then absent, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    count_is_capped: Option<bool>,
    /// Cursor of the next page. Absent on the last page, and if the page was requested with an
    /// offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cursor: Option<String>,
}

/// Links to other pages. A link contains path and query, without a host. A page that was requested
/// with a cursor has only the links `first` and `next`. A page that was requested with an offset
/// has no links if the list is empty.
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
    /// Creates a page that was requested with an offset. `count` is the total number of entries in
    /// the list.
    pub fn offset_page(uri: &Uri, page: PageParams, count: u64, data: Vec<T>) -> Self {
        let PageHead { meta, links } = PageHead::offset_page(uri, page, count, None);
        Self { meta, links, data }
    }

    /// Creates a page that was requested with a cursor. `next_cursor` is `None` on the last page.
    pub fn cursor_page(uri: &Uri, limit: u64, next_cursor: Option<String>, data: Vec<T>) -> Self {
        let PageHead { meta, links } = PageHead::cursor_page(uri, limit, next_cursor);
        Self { meta, links, data }
    }
}

/// The fields of [`Paginated`] before `data`.
#[derive(Debug, Serialize)]
pub(super) struct PageHead {
    meta: Meta,
    links: Links,
}

impl PageHead {
    /// Creates the head of a page that was requested with an offset. `count` is the total number of
    /// entries in the list. `next_offset` is the offset of the first entry after the page, if the
    /// page ends before its limit although more entries follow.
    pub fn offset_page(uri: &Uri, page: PageParams, count: u64, next_offset: Option<u64>) -> Self {
        let mut links = offset_links(uri, page, count);
        if let Some(next_offset) = next_offset {
            links.next = Some(offset_link(uri, next_offset, page.limit));
        }
        Self {
            meta: Meta {
                count: Some(count),
                count_is_capped: None,
                cursor: None,
            },
            links,
        }
    }

    /// Like [`Self::offset_page`], but more than `count` entries match the filters. `next_offset` is
    /// `None` if no entries follow the page.
    pub fn capped_page(uri: &Uri, page: PageParams, count: u64, next_offset: Option<u64>) -> Self {
        let mut head = Self::offset_page(uri, page, count, next_offset);
        head.meta.count_is_capped = Some(true);
        head.links.last = None;
        if next_offset.is_none() {
            head.links.next = None;
        }
        head
    }

    /// Creates the head of a page that was requested with a cursor. `next_cursor` is `None` on the
    /// last page.
    pub fn cursor_page(uri: &Uri, limit: u64, next_cursor: Option<String>) -> Self {
        let limit = limit.to_string();
        let link = |cursor: &str| {
            link_with_params(uri, &[("cursor", cursor), ("limit", &limit)], &["offset"])
        };
        Self {
            links: Links {
                first: Some(link("")),
                next: next_cursor.as_deref().map(link),
                ..Links::default()
            },
            meta: Meta {
                count: None,
                count_is_capped: None,
                cursor: next_cursor,
            },
        }
    }

    /// Returns the beginning of the page as JSON, up to the first entry.
    pub fn to_json(&self) -> Vec<u8> {
        // The fields are strings and numbers, which can always be serialized.
        let mut json = serde_json::to_vec(self).unwrap_or_default();
        json.pop();
        json.extend_from_slice(br#","data":["#);
        json
    }
}

fn offset_links(uri: &Uri, page: PageParams, count: u64) -> Links {
    if count == 0 {
        return Links::default();
    }
    let PageParams { offset, limit } = page;
    let link = |offset: u64| Some(offset_link(uri, offset, limit));
    let last_offset = (count - 1)
        .checked_div(limit)
        .map_or(0, |full_pages| full_pages * limit);
    Links {
        first: link(0),
        last: link(last_offset),
        next: (limit > 0 && offset.saturating_add(limit) < count)
            .then(|| link(offset + limit))
            .flatten(),
        prev: (limit > 0 && offset > 0)
            .then(|| link(offset.saturating_sub(limit)))
            .flatten(),
    }
}

fn offset_link(uri: &Uri, offset: u64, limit: u64) -> String {
    let (offset, limit) = (offset.to_string(), limit.to_string());
    link_with_params(uri, &[("offset", &offset), ("limit", &limit)], &[])
}

/// Returns the request's path and query with changed query parameters. Replaces or adds the
/// parameters in `set_params`. Removes the parameters in `removed_names`.
fn link_with_params(uri: &Uri, set_params: &[(&str, &str)], removed_names: &[&str]) -> String {
    let mut params = query_params(uri);
    params.retain(|(name, _)| {
        let is_set = set_params.iter().any(|(set_name, _)| set_name == name);
        !is_set && !removed_names.contains(&name.as_str())
    });
    let set_params = set_params
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    params.extend(set_params);
    // The sort is stable, so several values of one parameter keep their order.
    params.sort_by(|a, b| a.0.cmp(&b.0));
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(params)
        .finish();
    format!("{}?{query}", uri.path())
}

/// Returns the names and values of the query parameters, in the order of the request.
pub(super) fn query_params(uri: &Uri) -> Vec<(String, String)> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .into_owned()
        .collect()
}

/// Returns the last value of the query parameter `name`. Returns `None` if the parameter is
/// missing.
pub(super) fn last_param_value<'a>(params: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut params = params.iter().rev();
    let param = params.find(|(param_name, _)| param_name == name);
    param.map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(query: &str) -> Uri {
        format!("/api/v2/connections{query}").parse().unwrap()
    }

    fn expected_link(offset: u64, limit: u64) -> String {
        format!("/api/v2/connections?limit={limit}&offset={offset}")
    }

    #[test]
    fn offset_and_limit_have_defaults_and_limit_has_a_maximum() {
        let parse = |query| PageParams::from_query(&uri(query), "").unwrap();
        let page = |offset, limit| PageParams { offset, limit };
        assert_eq!(parse(""), page(0, 1000));
        assert_eq!(parse("?offset=&limit="), page(0, 1000));
        assert_eq!(parse("?offset=5&limit=0"), page(5, 0));
        assert_eq!(parse("?limit=99999999"), page(0, 10_000));
        let above_u64 = parse("?offset=18446744073709551616&limit=18446744073709551616");
        assert_eq!(above_u64, page(u64::MAX, 10_000));
        for invalid in ["?offset=-1", "?limit=x", "?limit=1.5"] {
            let parsed = PageParams::from_query(&uri(invalid), "");
            assert!(parsed.is_err(), "{invalid}");
        }
    }

    #[test]
    fn links_contain_first_last_next_and_previous_page() {
        let page = PageParams {
            offset: 2,
            limit: 2,
        };
        let links = offset_links(&uri("?limit=2&offset=2"), page, 7);
        assert_eq!(links.first, Some(expected_link(0, 2)));
        assert_eq!(links.prev, Some(expected_link(0, 2)));
        assert_eq!(links.next, Some(expected_link(4, 2)));
        assert_eq!(links.last, Some(expected_link(6, 2)));
    }

    #[test]
    fn first_page_has_no_previous_and_last_page_has_no_next() {
        let links_of =
            |offset, limit, count| offset_links(&uri(""), PageParams { offset, limit }, count);
        assert_eq!(links_of(0, 2, 7).prev, None);
        assert_eq!(links_of(6, 2, 7).next, None);
        assert_eq!(links_of(4, 2, 6).next, None);
        assert_eq!(links_of(1, 2, 7).prev, Some(expected_link(0, 2)));
        assert_eq!(links_of(0, 10, 0), Links::default());
        let limit_zero = links_of(0, 0, 3);
        assert_eq!((limit_zero.next, limit_zero.prev), (None, None));
    }

    #[test]
    fn links_contain_the_other_query_parameters_of_the_request() {
        let uri = uri("?tag=b:2&offset=9&tag=a:1&limit=5");
        assert_eq!(
            offset_link(&uri, 3, 7),
            "/api/v2/connections?limit=7&offset=3&tag=b%3A2&tag=a%3A1"
        );
        let page = PageHead::cursor_page(&uri, 7, Some("x".into()));
        let next = "/api/v2/connections?cursor=x&limit=7&tag=b%3A2&tag=a%3A1";
        assert_eq!(page.links.next.as_deref(), Some(next));
        let last_page = PageHead::cursor_page(&uri, 7, None);
        assert_eq!(last_page.links.next, None);
    }

    #[test]
    fn page_that_ends_early_links_to_the_entry_after_its_last_entry() {
        let page = PageParams {
            offset: 4,
            limit: 10,
        };
        let head = PageHead::offset_page(&uri(""), page, 6, Some(5));
        assert_eq!(head.links.next, Some(expected_link(5, 10)));
        assert_eq!(head.links.prev, Some(expected_link(0, 10)));
        let complete = PageHead::offset_page(&uri(""), page, 6, None);
        assert_eq!(complete.links.next, None);
    }

    #[test]
    fn page_with_a_capped_count_says_so_and_has_no_last_page() {
        let page = PageParams {
            offset: 4,
            limit: 2,
        };
        let head = PageHead::capped_page(&uri(""), page, 5, Some(6));
        let json = serde_json::to_value(&head).unwrap();
        let meta = serde_json::json!({"count": 5, "count_is_capped": true});
        assert_eq!(json["meta"], meta);
        assert_eq!(head.links.next, Some(expected_link(6, 2)));
        assert_eq!(head.links.last, None);
        let last = PageHead::capped_page(&uri(""), PageParams { offset: 0, ..page }, 5, None);
        assert_eq!(last.links.next, None);
    }

    #[test]
    fn head_and_entries_have_the_same_json_as_a_page() {
        let page = PageParams {
            offset: 1,
            limit: 1,
        };
        let paginated = Paginated::offset_page(&uri(""), page, 3, vec!["a"]);
        let mut json = PageHead::offset_page(&uri(""), page, 3, None).to_json();
        json.extend_from_slice(br#""a"]}"#);
        assert_eq!(json, serde_json::to_vec(&paginated).unwrap());
    }
}
