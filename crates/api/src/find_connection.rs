//! Finds the client connection to which a caller's request refers.

use super::error::ApiError;
use super::{ApiState, LookupMode};
use domain::{ClientId, Connection, OrgId};
use service::request_id;
use tenant::TranslationOutcome;

impl ApiState {
    /// Finds a connection that belongs to the organization.
    ///
    /// Returns `None` if the client is not connected, if the client belongs to another
    /// organization, or if `client_id` is not a valid client id.
    pub(super) async fn find_org_connection(
        &self,
        org: &OrgId,
        client_id: &str,
    ) -> Result<Option<Connection>, ApiError> {
        let Ok(client_id) = ClientId::new(client_id) else {
            return Ok(None);
        };
        Ok(self
            .connections
            .find_connection_for_org(org, &client_id)
            .await?)
    }

    /// Finds a connection that the organization may send messages to. These are the connections of
    /// the organization itself. In relaxed lookup mode, they also include Satellite servers of
    /// other organizations. Each access to such a Satellite server is logged.
    pub(super) async fn find_reachable_connection(
        &self,
        org: &OrgId,
        client_id: &str,
    ) -> Result<Option<Connection>, ApiError> {
        if self.lookup_mode == LookupMode::Strict {
            return self.find_org_connection(org, client_id).await;
        }
        let Ok(client_id) = ClientId::new(client_id) else {
            return Ok(None);
        };
        let connection = self
            .connections
            .find_org_or_satellite_connection(org, &client_id)
            .await?;
        if let Some(connection) = &connection
            && connection.tenant.org_id != *org
        {
            tracing::info!(
                request_id = request_id::current(),
                client_id = client_id.as_str(),
                owner_org_id = connection.tenant.org_id.as_str(),
                caller_org_id = org.as_str(),
                "cross-organization Satellite access"
            );
        }
        Ok(connection)
    }

    /// Finds the organization that has this account number. Returns `None` for an unknown account
    /// number.
    pub(super) async fn find_org_by_account(
        &self,
        account: &str,
    ) -> Result<Option<OrgId>, ApiError> {
        match self.account_translator.org_of_account(account).await {
            TranslationOutcome::Found(org) => Ok(Some(org)),
            TranslationOutcome::NotFound => Ok(None),
            TranslationOutcome::Unavailable => Err(ApiError::unavailable(
                "The account translation service is unavailable; retry later",
            )),
        }
    }
}
