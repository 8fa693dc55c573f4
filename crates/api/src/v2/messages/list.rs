//! `GET /v2/messages`: lists tracked messages.

use axum::extract::{OriginalUri, State};
use utoipa::IntoParams;
use uuid::Uuid;

use super::super::{INVALID_REQUEST_TITLE, invalid_request_error, reject_unknown_params};
use super::MessageView;
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json::Json;
use crate::pagination::{Paginated, last_param_value, number_param, query_params};
use domain::{ClientId, MessageId, MessageState, Timestamp};
use store::MessageFilter;

const DEFAULT_LIMIT: u64 = 100;
/// Maximum number of messages per page.
const MAX_LIMIT: u32 = 1000;

const PARAM_NAMES: [&str; 6] = [
    "client_id",
    "state",
    "directive",
    "created_after",
    "cursor",
    "limit",
];

/// OpenAPI description of the query parameters.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameters")]
struct MessageListParams {
    /// Returns only messages to this client.
    client_id: Option<String>,
    /// Returns only messages in this state.
    #[param(
        pattern = "^(queued|sending|acknowledged|answered|rejected|failed|expired|cancelled)?$"
    )]
    state: Option<String>,
    /// Returns only messages with this directive.
    directive: Option<String>,
    /// Returns only messages that were accepted after this time (RFC 3339).
    #[param(
        example = "2026-01-31T12:00:00Z",
        pattern = "^([0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z)?$"
    )]
    created_after: Option<String>,
    /// Selects the page. For the first page, use no cursor or an empty cursor. For the next page, use
    /// the value of `meta.cursor` in the previous response.
    #[param(pattern = "^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$")]
    cursor: Option<String>,
    /// Maximum number of messages to return. Values above 1,000 are reduced to 1,000.
    #[param(required = false, default = 100, format = "uint64")]
    limit: u64,
}

/// List tracked messages
///
/// Returns the tracked messages that the organization has sent, newest first, without their answers. With
/// filters, a page can have fewer messages than its limit, or none, although it is not the last page. The
/// last page has no `meta.cursor`.
#[utoipa::path(
    get,
    path = "/messages",
    operation_id = "v2.messages.list",
    params(MessageListParams),
    responses((status = 200, description = "A page of messages.", body = Paginated<MessageView>)),
)]
pub(in crate::v2) async fn list(
    State(state): State<SharedState>,
    caller: OrgCaller,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Paginated<MessageView>>, ApiError> {
    let params = query_params(&uri);
    reject_unknown_params(&params, &PARAM_NAMES)?;
    let limit = number_param(&params, "limit", DEFAULT_LIMIT, INVALID_REQUEST_TITLE)?;
    let limit = u32::try_from(limit).unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
    let after = parse_cursor(last_param_value(&params, "cursor"))?;
    let Some(filter) = parse_filter(&params)? else {
        let page = Paginated::cursor_page(&uri, limit.into(), None, Vec::new());
        return Ok(Json(page));
    };
    let page = state
        .messages
        .list_messages(&caller.org_id, &filter, after.as_ref(), limit)
        .await?;
    let next_cursor = page.next_after.map(|id| id.to_string());
    let data = page.messages.into_iter().map(MessageView::from).collect();
    let page = Paginated::cursor_page(&uri, limit.into(), next_cursor, data);
    Ok(Json(page))
}

/// Parses the filters. Ignores empty values. Returns `None` if no message can match.
fn parse_filter(params: &[(String, String)]) -> Result<Option<MessageFilter>, ApiError> {
    let value = |name: &str| last_param_value(params, name).filter(|text| !text.is_empty());
    let client_id = match value("client_id").map(ClientId::new) {
        Some(Err(_)) => return Ok(None),
        Some(Ok(client_id)) => Some(client_id),
        None => None,
    };
    let state = value("state").map(|name| {
        MessageState::from_name(name).ok_or_else(|| {
            let names: Vec<&str> = MessageState::ALL.iter().map(|it| it.as_str()).collect();
            invalid_request_error(format!("state must be one of: {}", names.join(", ")))
        })
    });
    let created_after = value("created_after").map(|text| {
        text.parse::<Timestamp>().map_err(|_| {
            invalid_request_error("created_after must be a time such as 2026-01-31T12:00:00Z")
        })
    });
    let directive = value("directive");
    // The databases cannot store NUL.
    if directive.is_some_and(|text| text.contains('\0')) {
        return Ok(None);
    }
    Ok(Some(MessageFilter {
        client_id,
        state: state.transpose()?,
        directive: directive.map(str::to_owned),
        created_after: created_after.transpose()?,
    }))
}

/// Parses a cursor: the id of the last message that the previous page has examined.
fn parse_cursor(cursor: Option<&str>) -> Result<Option<MessageId>, ApiError> {
    match cursor {
        None | Some("") => Ok(None),
        Some(text) => Uuid::try_parse(text)
            .map(|id| Some(MessageId::from(id)))
            .map_err(|_| {
                invalid_request_error(
                    "cursor must be the value of meta.cursor in the previous response",
                )
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(params: &[(&str, &str)]) -> Result<Option<MessageFilter>, String> {
        let params: Vec<_> = params
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        parse_filter(&params).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn filters_are_parsed_and_empty_values_are_ignored() {
        let filter = parse(&[
            ("client_id", "a"),
            ("state", "failed"),
            ("directive", "echo"),
            ("created_after", "2026-01-31T12:00:00+01:00"),
        ]);
        let filter = filter.unwrap().unwrap();
        assert_eq!(filter.client_id, ClientId::new("a").ok());
        assert_eq!(filter.state, Some(MessageState::Failed));
        assert_eq!(filter.directive.as_deref(), Some("echo"));
        assert_eq!(
            filter.created_after,
            Some("2026-01-31T11:00:00Z".parse().unwrap())
        );
        let empty = parse(&[("client_id", ""), ("state", ""), ("created_after", "")]);
        assert_eq!(empty.unwrap(), Some(MessageFilter::default()));
        assert_eq!(parse(&[("client_id", "a/b")]).unwrap(), None);
        assert!(parse(&[("state", "done")]).unwrap_err().contains("queued"));
        assert!(parse(&[("created_after", "yesterday")]).is_err());
    }

    #[test]
    fn cursor_is_a_message_id() {
        let id = "018f3c1e-7a2b-7c3d-8e4f-0123456789ab";
        assert_eq!(parse_cursor(Some(id)).unwrap(), MessageId::new(id).ok());
        assert_eq!(parse_cursor(Some("")).unwrap(), None);
        assert!(parse_cursor(Some("x")).is_err());
    }
}
