// Package nodeproxy is the data path of one node. Towards the mesh it carries
// the connections of local pods: it resolves where they may go, chooses by
// health, opens single or double tunnels, and repeats a connect elsewhere until
// the first byte has passed. From the mesh it ends tunnels for local pods and
// is the witness of what their applications did.
//
// It promises: no connection fails for a fault that another endpoint could have
// served, as long as nothing of the application's had been delivered; a session
// is never used for another source identity; what it reports concerns only pods
// of its own node.
//
// It does not judge what an application says, or that it says nothing, once it
// has accepted a connection.
package nodeproxy
