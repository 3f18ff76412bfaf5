# A probe that nobody ever ended does not keep the endpoint out for ever.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
60s begin lost                       | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
119s show                            | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
120s show                            | probing health=0.490 failures=2 ejections=1 until=1m0s
120s begin probe                     | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
121s end lost failure                | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
122s end probe success               | healthy health=0.643 failures=0 ejections=1 <readmitted>
