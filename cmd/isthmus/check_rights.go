package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// right is one at the API server; without a resource it is of a path.
type right struct {
	verb, group, resource, path string
	own                         bool   // in the namespace of the mesh alone
	name                        string // of the one object that it is for; empty: of all
}

func (r right) String() string {
	out := r.verb + " " + r.resource
	if r.group != "" {
		out += "." + r.group
	}
	if r.path != "" {
		out = r.verb + " " + r.path
	}
	return strings.TrimSpace(out + " " + r.name)
}

// rightsOf makes a list of rights: verbs of resources of a group, with commas.
func rightsOf(group, resources, verbs string) (out []right) {
	for resource := range strings.SplitSeq(resources, ",") {
		for verb := range strings.SplitSeq(verbs, ",") {
			out = append(out, right{verb: verb, group: group, resource: resource})
		}
	}
	return out
}

const multicluster = "multicluster.x-k8s.io"

// The rights of docs/rights.md, apart from that to patch nodes, which few give.
var (
	tokenRights   = []right{{verb: "create", group: "authentication.k8s.io", resource: "tokenreviews"}, {verb: "get", path: "/openid/v1/jwks"}, {verb: "get", path: "/.well-known/openid-configuration"}}
	policyRights  = rightsOf("security.istio.io", "authorizationpolicies,peerauthentications", "list,watch")
	gatewayRights = slices.Concat(rightsOf("", "pods,services,nodes,namespaces", "list,watch"), rightsOf("discovery.k8s.io", "endpointslices", "list,watch"),
		rightsOf(multicluster, "serviceexports,serviceimports", "list,watch"), policyRights, tokenRights)
	controllerRights = slices.Concat(rightsOf("", "namespaces,services,pods", "get,list,watch"), rightsOf("", "nodes", "list,watch"), rightsOf("discovery.k8s.io", "endpointslices", "list,watch"),
		rightsOf(multicluster, "serviceexports", "get,list,watch"), rightsOf(multicluster, "serviceimports", "get,list,watch,create,update,delete"), rightsOf(multicluster, "serviceexports/status,serviceimports/status", "update"), policyRights,
		rightsOf("", "events", "create,patch"), tokenRights, []right{
			{verb: "get", group: "coordination.k8s.io", resource: "leases", own: true, name: "isthmus-controller"}, {verb: "update", group: "coordination.k8s.io", resource: "leases", own: true, name: "isthmus-controller"},
			{verb: "get", resource: "configmaps", own: true, name: "isthmus-vips"}, {verb: "update", resource: "configmaps", own: true, name: "isthmus-vips"}})
)

// accessReview asks whether somebody has a right, and has the answer.
type accessReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		User                  string           `json:"user"`
		Groups                []string         `json:"groups"`
		ResourceAttributes    *accessResource  `json:"resourceAttributes,omitempty"`
		NonResourceAttributes *accessNamedPath `json:"nonResourceAttributes,omitempty"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status,omitzero"`
}

type accessResource struct {
	Namespace   string `json:"namespace,omitempty"`
	Verb        string `json:"verb"`
	Group       string `json:"group"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Name        string `json:"name,omitempty"`
}

type accessNamedPath struct {
	Path string `json:"path"`
	Verb string `json:"verb"`
}

// rights checks whether the service accounts of gateways and controller may do what they have
// to. Who may not ask that is warned.
func (c *checkup) rights(ctx context.Context, p *place, where string) error {
	var missing, unasked []string
	checked := false
	for _, of := range []struct {
		deployment string
		rights     []right
	}{{"isthmus-gateway", gatewayRights}, {"isthmus-controller", controllerRights}} {
		var o struct {
			Spec struct {
				Template struct {
					Spec struct{ ServiceAccountName string }
				}
			}
		}
		there, err := p.k.get(ctx, "deployment", of.deployment, &o)
		account := o.Spec.Template.Spec.ServiceAccountName
		if may, err := p.may(err, checkRights.code); err != nil {
			return err
		} else if !may || !there || account == "" {
			continue
		}
		lacks, err := p.k.lacks(ctx, account, of.rights)
		may, err := p.may(err, checkRights.code)
		if err != nil {
			unasked = append(unasked, fmt.Sprintf("it cannot be asked: %v", err))
		}
		if checked = checked || may || err != nil; len(lacks) > 0 {
			missing = append(missing, fmt.Sprintf("service account %s/%s of %s may not %s", p.k.namespace, account, of.deployment, strings.Join(lacks, ", ")))
		}
	}
	switch {
	case len(missing) > 0:
		c.add(checkRights, where, checkBad, strings.Join(slices.Concat(missing, unasked), "\n"))
	case checked:
		c.add(checkRights, where, checkWarning, strings.Join(unasked, "\n"))
	}
	return nil
}

// lacks are the rights among list that a service account of the namespace does not have.
func (k kubectl) lacks(ctx context.Context, account string, list []right) (out []string, err error) {
	var in bytes.Buffer
	e := json.NewEncoder(&in)
	for _, r := range list {
		a := accessReview{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}
		a.Spec.User = "system:serviceaccount:" + k.namespace + ":" + account
		a.Spec.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + k.namespace, "system:authenticated"}
		if r.path != "" {
			a.Spec.NonResourceAttributes = &accessNamedPath{r.path, r.verb}
		} else {
			resource, sub, _ := strings.Cut(r.resource, "/")
			a.Spec.ResourceAttributes = &accessResource{Verb: r.verb, Group: r.group, Resource: resource, Subresource: sub, Name: r.name}
			if r.own {
				a.Spec.ResourceAttributes.Namespace = k.namespace
			}
		}
		if err := e.Encode(a); err != nil {
			return nil, err
		}
	}
	// Validated here, it takes the right to list CustomResourceDefinitions too.
	b, err := k.run(ctx, in.Bytes(), "create", "--filename", "-", "--output", "json", "--validate=ignore")
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	for i := range list {
		var a accessReview
		if err := d.Decode(&a); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%d of %d answers", i, len(list))
			}
			return nil, exit(exitStart, fmt.Errorf("subjectaccessreviews of context %q: %w", k.context, err))
		}
		if !a.Status.Allowed {
			out = append(out, list[i].String())
		}
	}
	return out, nil
}
